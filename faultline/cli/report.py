"""`faultline report`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from faultline.cli.arguments import TRUST, folder
from faultline.cli.arguments import seeds as seeds_type

HELP = "compare the runs of a sweep: an HTML page, Markdown and CSV files"
EXAMPLES = """\
faultline report runs/demo
faultline report runs/demo --seeds 0,1 --out report
faultline report runs/demo --deployed rollout --margin 0.05 --out report
faultline report wandb-offline:wandb"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `faultline.cli.Command`."""
    parser.add_argument("sweep", help="its folder, as runs/demo; or wandb-offline:FOLDER, or wandb:[entity/]project[:group]")
    parser.add_argument("--out", type=folder, help="folder of the report; by default report in the sweep's folder")
    parser.add_argument("--into", type=Path, help="Markdown file that takes the results between its two marks, as README.md")
    parser.add_argument("--seeds", type=seeds_type, default=(), help="only runs of these seeds, as 3,4,5; by default all")
    parser.add_argument("--trust", action="store_true", help=TRUST)
    parser.add_argument("--deployed", choices=("trainer", "rollout"), help="judge the trainer's own policy or the sampling one")
    parser.add_argument("--margin", type=float, help="of the held-out reward, as 0.05: adds tests of equivalence within it")


def run(sweep: str, out: Path | None, into: Path | None, seeds: tuple[int, ...], **options: Any) -> None:
    """Write the report and print its path."""
    from analysis.report import report

    print(f"Page: {report(sweep, out, into, seeds, **options).resolve()}")
