"""Command line of `faultline search`."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import nullcontext
from pathlib import Path

HELP = "search thresholds with Optuna, here or on Slurm; the same command continues a search"
EXAMPLES = """\
faultline search upper_edge
faultline search token_upper launcher=local --dashboard
faultline search token_upper trials=20 launcher.partition=main
faultline search sweeps/conf/search/learning_rate_edge.yaml name=edge"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `faultline search`."""
    parser.add_argument("spec", type=Path, help="YAML file, or the name of one in sweeps/conf/search")
    dashboard = "serve optuna-dashboard on the search, on 127.0.0.1, until Ctrl-C"
    parser.add_argument("--dashboard", action="store_true", help=dashboard)
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="changes to it, as trials=20 launcher.partition=main")


def run(spec: Path, changes: list[str], dashboard: bool) -> None:
    """Run a search of hyperparameters and print its result as JSON."""
    print(f"search {spec}: importing, then checking the corners of its space ...", file=sys.stderr, flush=True)
    from sweeps.search.controller import search, sweep_of
    from sweeps.search.dashboard import serve_dashboard, until_interrupted

    with serve_dashboard(sweep_of(spec, changes)) if dashboard else nullcontext() as address:
        if address:
            print(f"Dashboard: {address}", file=sys.stderr, flush=True)
        print(json.dumps(search(spec, changes), indent=2), flush=True)
        if address:
            until_interrupted(f"The search has ended. {address} stays until Ctrl-C.")
