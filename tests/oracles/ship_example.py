"""`python -m tests.oracles.ship_example NAME FILE.pkl`: ship a batch that SkyRL dumped as `faultline replay --example NAME`.

The shipped ones are of the first seed of `skyrl_batches.py` at temperature 0.7: `raw` by SkyRL's defaults, and `processed` with
the remedy, log-probabilities from after temperature.
"""

import sys
from pathlib import Path

from faultline.tools.replay.example import SKYRL, example
from faultline.tools.replay.readers import read_skyrl
from harness.boundary import command
from harness.dumps.files import write
from harness.errors import UserError

if __name__ == "__main__":
    with command("interrupted; the same command starts again"):
        if len(sys.argv) != 3 or sys.argv[1] not in SKYRL:
            raise UserError(f"give a name, {' or '.join(SKYRL)}, and a file that SkyRL's trainer.dump_data_batch wrote")
        write(example(sys.argv[1]), read_skyrl(Path(sys.argv[2])))
