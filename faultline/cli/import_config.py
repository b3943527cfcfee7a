"""`faultline import-config`."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "translate a verl, SkyRL or TRL config into an experiment file"
DESCRIPTION = """\
Print a verl, SkyRL or TRL config as an experiment file of this project.
A comment in the file names each key without a counterpart here: read the lines marked "not translated".
A correction's value that cannot be used is an error (exit code 2)."""
EXAMPLES = """\
echo '{algorithm: {rollout_correction: {rollout_is: token, rollout_is_threshold: 2.0}}}' > theirs.yaml
faultline import-config theirs.yaml"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `faultline.cli.Command`."""
    parser.add_argument("file", type=Path, help="YAML or JSON file; its keys are nested or dotted")


def run(file: Path) -> None:
    """Print the experiment file."""
    from faultline.tools.import_config import import_config

    print(import_config(file), end="")
