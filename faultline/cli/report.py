"""`faultline report`."""

from __future__ import annotations

import argparse
from pathlib import Path

from faultline.cli.arguments import seeds as seeds_type

HELP = "compare the runs of a sweep: an HTML page, Markdown and CSV files"
EXAMPLES = """\
faultline report runs/demo
faultline report runs/demo --seeds 0,1 --out report
faultline report wandb-offline:wandb"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `faultline.cli.Command`."""
    parser.add_argument("sweep", help="its folder, as runs/demo; or wandb-offline:FOLDER, or wandb:[entity/]project[:group]")
    parser.add_argument("--out", type=Path, help="folder of the report; by default report in the sweep's folder")
    parser.add_argument("--into", type=Path, help="Markdown file that takes the results between its two marks, as README.md")
    parser.add_argument("--seeds", type=seeds_type, default=(), help="only runs of these seeds, as 3,4,5; by default all")


def run(sweep: str, out: Path | None, into: Path | None, seeds: tuple[int, ...]) -> None:
    """Write the report and print its path."""
    from analysis.report import report

    print(f"Page: {report(sweep, out, into, seeds).resolve()}")
