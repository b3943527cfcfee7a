"""Command line of `faultline sweep status|logs|cancel|retry`, which shows, stops or retries the runs of a sweep."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from faultline.cli.arguments import count

HELP = "show, stop or retry the runs of a sweep of hydra/launcher=local or slurm"
EXAMPLES = """\
faultline sweep status runs/demo
faultline sweep logs runs/demo -n 40
faultline sweep cancel runs/demo
faultline sweep retry runs/demo"""
ACTIONS = {
    "status": "show the state of its runs, from the ledger and Slurm",
    "logs": "show the end of the logs of runs, by default of those that failed",
    "cancel": "cancel its jobs, or stop its launcher; each run saves a checkpoint",
    "retry": "run again what failed, was interrupted or cancelled, the way it was launched",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `faultline sweep`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    for action, text in ACTIONS.items():
        example = next(line for line in EXAMPLES.splitlines() if f" {action} " in line)
        description = f"{text[0].upper()}{text[1:]}."
        subparser = actions.add_parser(action, help=text, description=description, epilog=f"example: {example}")
        subparser.add_argument("path", metavar="sweep", type=Path, help="folder of the sweep, as runs/demo")
        if action in ("logs", "retry"):
            subparser.add_argument("runs", nargs="*", help="runs, by the beginning of their hash; by default all that failed")
        if action == "retry":
            code = "on Slurm: sweep runs the sweep's own snapshot, new the current files"
            subparser.add_argument("--code", choices=("sweep", "new"), help=code)
        if action == "logs":
            subparser.add_argument("-n", type=count(1), default=20, help="lines of each log (20)")


def run(action: str, **arguments: Any) -> None:
    """Run one action on a sweep. action: name of the function of `sweeps.commands` that gets the other arguments."""
    from sweeps import commands

    getattr(commands, action)(**arguments)
