"""The `faultline` command: what faultline/tools.py has, and what needs a launcher."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from faultline.tools import main as faultline


def main() -> None:
    """Entry point."""
    faultline(_add_sweep, _add_search, _add_branch)


def _add_sweep(commands: argparse._SubParsersAction) -> None:
    sweep = commands.add_parser("sweep", help="look at a sweep of hydra/launcher=local or slurm, stop it, run its failures again")
    actions = sweep.add_subparsers(dest="action", required=True)
    for action, told in {
        "status": "what its runs do, from the ledger and Slurm",
        "logs": "the end of the logs of runs, by default of those that failed",
        "cancel": "stop its jobs, or its launcher; each run saves a checkpoint",
        "retry": "run again what failed, was interrupted or cancelled, as it was launched",
    }.items():
        parser = actions.add_parser(action, help=told)
        parser.add_argument("path", metavar="sweep", type=Path, help="folder of the sweep, as runs/demo")
        if action in ("logs", "retry"):
            parser.add_argument("runs", nargs="*", help="beginnings of the hashes of runs; none: all that failed")
        if action == "retry":
            parser.add_argument("--code", choices=("sweep", "new"), help="on Slurm: the sweep's own snapshot, or the files here")
        if action == "logs":
            parser.add_argument("-n", type=int, default=20, help="lines of each log")
    sweep.set_defaults(run=_sweep)


def _add_search(commands: argparse._SubParsersAction) -> None:
    search = commands.add_parser("search", help="search thresholds with Optuna on Slurm; the same command again goes on")
    search.add_argument("spec", type=Path, help="YAML file, or the name of one in sweeps/conf/search")
    search.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="changes to it, as trials=20 launcher.partition=main")
    search.set_defaults(run=_search)


def _add_branch(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("branch", help="go on from a checkpoint of a run under other settings, compared by survival")
    parser.add_argument("origin", metavar="run", type=Path, help="its folder, as runs/demo/<hash>")
    parser.add_argument("--at", type=int, help="step of the checkpoint; the newest")
    parser.add_argument("--set", dest="arms", action="append", default=[], metavar="ARM", help="as correction=icepop")
    parser.add_argument("--noise", action="store_true", help="also an arm with synthetic noise of the K3 of the run's rollouts")
    parser.add_argument("--seeds", type=_count, default=5, help="seeds of each arm, the unchanged one included (5)")
    parser.set_defaults(run=_branch)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no whole number of at least 1")
    return int(text)


def _branch(**arguments) -> None:
    from sweeps.branch import branch

    print(f"Page: {branch(**arguments).resolve()}")


def _search(spec: Path, changes: list[str]) -> None:
    print(f"search {spec}: importing, then checking the corners of its space ...", file=sys.stderr, flush=True)
    from sweeps.search.controller import search

    print(json.dumps(search(spec, changes), indent=2))


def _sweep(action: str, **arguments) -> None:
    from sweeps import commands

    getattr(commands, action)(**arguments)


if __name__ == "__main__":
    main()
