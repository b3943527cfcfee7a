"""`python -m tests.oracles.ship_example FILE.pkl`: make a batch that SkyRL dumped the one of `faultline replay --example raw`.

It ships the batch of the first seed at temperature 0.7 of `skyrl_batches.py`.
"""

import sys
from pathlib import Path

from faultline.tools.replay.example import example
from faultline.tools.replay.readers import read_skyrl
from harness.boundary import command
from harness.dumps.files import write

if __name__ == "__main__":
    with command("interrupted; the same command starts again"):
        write(example("raw"), read_skyrl(Path(sys.argv[1])))
