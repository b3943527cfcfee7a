"""`python -m tests.oracles.ship_example FILE.pkl`: ship a batch that SkyRL dumped as that of `faultline replay --example raw`.

The shipped one is of the first seed of `skyrl_batches.py` at temperature 0.7.
"""

import sys
from pathlib import Path

from faultline.tools.replay.example import example
from faultline.tools.replay.readers import read_skyrl
from harness.boundary import command
from harness.dumps.files import write
from harness.errors import UserError

if __name__ == "__main__":
    with command("interrupted; the same command starts again"):
        if len(sys.argv) != 2:
            raise UserError("give one file, which SkyRL's trainer.dump_data_batch wrote")
        write(example("raw"), read_skyrl(Path(sys.argv[1])))
