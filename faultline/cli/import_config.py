"""Command line of `faultline import-config`, which translates a verl, SkyRL or TRL config into an experiment file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from faultline.cli.arguments import plug_ins_here

HELP = "translate a verl, SkyRL or TRL config or shell recipe into an experiment file"
DESCRIPTION = """\
Print a verl, SkyRL or TRL config as an experiment file of this project. A shell recipe is parsed, never executed.
A comment in the file names each key without a counterpart here: read the lines marked "not translated".
A correction's key or value that cannot be used is an error (exit code 2).
With --launch the file has its model and its task too. It is checked and written. The command that runs it on the recipe's
GPUs is printed, and on standard error each key that was not translated.
Data and reward of your own come after DIR: --launch DIR task.path=FILE.jsonl task.verifier=MODULE:FUNCTION"""
EXAMPLES = """\
echo '{algorithm: {rollout_correction: {rollout_is: token, rollout_is_threshold: 2.0}}}' > theirs.yaml
faultline import-config theirs.yaml
echo 'python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.tis_imp_ratio_cap=2' > run.sh
faultline import-config run.sh"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `faultline import-config`."""
    parser.usage = "%(prog)s [-h] file [--launch DIR [KEY=VALUE ...]]"  # --launch takes all that follows
    parser.add_argument("file", type=Path, help="YAML or JSON file of keys, or a shell recipe")
    parser.add_argument(
        "--launch", nargs="+", metavar=("DIR", "KEY=VALUE"),
        help="write DIR/experiment/NAME.yaml, ready to run with these keys, as task.path=FILE.jsonl",
    )  # fmt: skip


def run(file: Path, launch: list[str] | None) -> None:
    """Print `file` as an experiment file. launch (folder, then overrides): write it there instead, and print its command."""
    from faultline.tools import import_config

    if launch is None:
        text = import_config.import_config(file)
        print(text, end="")
    else:
        plug_ins_here()
        command, text, remarks = import_config.launch(file, Path(launch[0]), launch[1:])
        print(command)
        print(*remarks, sep="\n", file=sys.stderr)
    if launch is not None or not sys.stdout.isatty():  # on a terminal the printed file has them
        for line in text.splitlines():
            if line.startswith("# WARNING"):
                print(line, file=sys.stderr)
