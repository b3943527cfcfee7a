"""`experiments.train` whose runs stand still at a point: python -m tests.sweeps.launchers.held_train "row 9" -m OVERRIDES..."""

import os
import sys

POINT = "POINT_OF_TESTS"

if __name__ == "__main__":
    from experiments.train import main

    os.environ[POINT] = sys.argv[1]
    main(sys.argv[2:])
elif __name__ == "__mp_main__":  # a run: multiprocessing has it import the program that started it
    from tests.harness.paused_runs import pause_at

    pause_at(os.environ[POINT])
