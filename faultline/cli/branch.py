"""Command line of `faultline branch`, which continues a checkpoint of a run under other settings."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from faultline.cli.arguments import TRUST, count

HELP = "continue from a checkpoint of a run under other settings, and compare survival"
EXAMPLES = """\
faultline train rollout/precision=fp8_tensor steps=40 run.sweep=first
faultline branch runs/first/* --set rollout/precision=fp32 --set 'correction=icepop steps=60' --seeds 2
faultline branch runs/first/* --noise"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `faultline branch`."""
    parser.add_argument("origin", metavar="run", type=Path, help="folder of the run, as runs/demo/<hash>")
    parser.add_argument("--at", type=count(0), metavar="STEP", help="step of the checkpoint; by default the newest")
    parser.add_argument("--set", dest="arms", action="append", default=[], metavar="ARM", help="overrides, as correction=icepop")
    parser.add_argument("--noise", action="store_true", help="add an arm of synthetic noise with the K3 of the run's rollouts")
    parser.add_argument("--seeds", type=count(1), default=5, help="seeds of each arm; one arm is always unchanged (5)")
    parser.add_argument("--trust", action="store_true", help=TRUST)


def run(**arguments: Any) -> None:
    """Continue one checkpoint under each of several settings, write the report and print its path."""
    from harness.extras import require
    from sweeps.branch import branch

    require("train")  # what reads the run works without it, and what trains comes late
    print(f"Page: {branch(**arguments).resolve()}")
