"""Command line of `faultline report`, which compares the runs of a sweep in HTML, Markdown and CSV files."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from faultline.cli.arguments import TRUST, folder
from faultline.cli.arguments import seeds as seeds_type
from harness.errors import UserError, printable
from harness.startup import uncollected

HELP = "compare the runs of a sweep: an HTML page, Markdown and CSV files"
EXAMPLES = """\
faultline report runs/demo
faultline report runs/demo --seeds 0,1 --out report
faultline report runs/demo --deployed rollout --margin 0.05 --out report
faultline report runs/demo --watch
faultline report runs/demo --wandb faultline
faultline report wandb-offline:wandb"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `faultline report`."""
    parser.add_argument("sweep", help="its folder, as runs/demo; or wandb-offline:FOLDER, or wandb:[entity/]project[:group]")
    parser.add_argument("--out", type=folder, help="folder of the report; by default the sweep's own folder")
    parser.add_argument("--into", type=Path, help="Markdown file that takes the results between its two marks, as README.md")
    parser.add_argument("--seeds", type=seeds_type, default=(), help="only runs of these seeds, as 3,4,5; by default all")
    parser.add_argument("--trust", action="store_true", help=TRUST)
    parser.add_argument("--deployed", choices=("trainer", "rollout"), help="judge the trainer's own policy or the sampling one")
    parser.add_argument("--margin", type=float, help="of the held-out reward, as 0.05: adds tests of equivalence within it")
    parser.add_argument("--wandb", metavar="PROJECT", help="push the report to W&B too, or into an offline run without a key")
    parser.add_argument("--watch", action="store_true", help="follow the sweep instead, as faultline watch does")


def run(
    sweep: str, out: Path | None, into: Path | None, seeds: tuple[int, ...], watch: bool, wandb: str | None, **options: Any
) -> None:
    """Write the report of a sweep and print its path, or with `watch` follow the sweep. wandb: W&B project for the report."""
    if watch:
        _watch(sweep, {"out": out, "into": into, "seeds": seeds, "wandb": wandb, **options})
        return
    with uncollected():
        from analysis.report import report
    page = report(sweep, out, into, seeds, pictures=wandb is not None, **options).resolve()
    print(printable(f"Page: {page}"))
    if wandb is not None:
        from harness.run.wandb import push_report

        where = push_report(page.parent, Path(sweep).resolve().name, wandb)
        print(f"W&B: {where}" if where.startswith("http") else f"W&B, offline: {where}; this sends it: wandb sync {where}")


def _watch(sweep: str, options: dict[str, Any]) -> None:
    from sweeps.watch.command import watch

    if given := [f"--{name}" for name, value in options.items() if value]:
        raise UserError(f"--watch: {', '.join(given)} has no effect on what is followed; leave it out, or leave --watch out")
    if sweep.startswith("wandb"):
        raise UserError(f"--watch: {sweep}: only a sweep's folder can be followed, as runs/demo")
    watch(Path(sweep))
