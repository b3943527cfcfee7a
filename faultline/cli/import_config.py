"""`faultline import-config`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HELP = "translate a verl, SkyRL or TRL config into an experiment file"
DESCRIPTION = """\
Print a verl, SkyRL or TRL config as an experiment file of this project.
A comment in the file names each key without a counterpart here: read the lines marked "not translated".
A correction's value that cannot be used is an error (exit code 2).
With --launch the file has its model and its task too. It is checked and written, and the command that runs it is printed."""
EXAMPLES = """\
echo '{algorithm: {rollout_correction: {rollout_is: token, rollout_is_threshold: 2.0}}}' > theirs.yaml
faultline import-config theirs.yaml"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `faultline.cli.Command`."""
    parser.add_argument("file", type=Path, help="YAML or JSON file; its keys are nested or dotted")
    parser.add_argument(
        "--launch", nargs="+", metavar=("DIR", "KEY=VALUE"),
        help="write DIR/experiment/NAME.yaml, ready to run with these keys, as task.path=FILE.jsonl",
    )  # fmt: skip


def run(file: Path, launch: list[str] | None) -> None:
    """Print the experiment file, or the command that runs it."""
    from faultline.tools import import_config

    if launch is not None:
        print(import_config.launch(file, Path(launch[0]), launch[1:]))
        print(f"written under {launch[0]}/experiment; the comments of the file say what was not translated", file=sys.stderr)
    else:
        print(import_config.import_config(file), end="")
