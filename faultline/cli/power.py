"""Command line of `faultline power`, which computes the number of seeds that a comparison needs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from faultline.cli.arguments import count
from faultline.cli.arguments import seeds as seeds_type

HELP = "the seeds that a claim needs, from the spread of a sweep's control"
DESCRIPTION = """\
How many seeds an arm needs, before a sweep starts: to find a difference of the held-out reward, and to show that two arms are
equivalent within a margin. The spread is that of the control's seeds."""
EXAMPLES = """\
faultline power runs/demo
faultline power runs/demo --difference 0.1 --margin 0.05 --power 0.9"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `faultline power`."""
    parser.add_argument("sweep", help="its folder, as runs/demo; or wandb-offline:FOLDER, or wandb:[entity/]project[:group]")
    parser.add_argument("--difference", type=float, default=0.1, help="of the mean reward that is to be found; by default 0.1")
    parser.add_argument("--margin", type=float, default=0.05, help="within which arms count as equivalent; by default 0.05")
    parser.add_argument("--power", type=float, default=0.8, help="probability of finding what is there; by default 0.8")
    parser.add_argument("--comparisons", type=count(1), default=1, help="of the family of Holm's adjustment; by default 1")
    parser.add_argument("--seeds", type=seeds_type, default=(), help="only runs of these seeds, as 3,4,5; by default all")


def run(sweep: Path | str, power: float, **options: Any) -> None:
    """Print the number of seeds that comparisons between settings of a sweep need for a given statistical power."""
    from analysis.frames import show
    from analysis.power import plan

    table = plan(sweep, power=power, **options)
    show(f"Seeds an arm for a power of {power:g} at the 5 % level, for the spread and for its upper 80 % limit", table)
