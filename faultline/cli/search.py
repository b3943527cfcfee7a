"""Command line of `faultline search`, which searches hyperparameters with Optuna."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

HELP = "search thresholds with Optuna, here or on Slurm; the same command continues a search"
EXAMPLES = """\
faultline search upper_edge
faultline search token_upper launcher=local
faultline search token_upper trials=20 launcher.partition=main
faultline search sweeps/conf/search/learning_rate_edge.yaml name=edge"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `faultline search`."""
    parser.add_argument("spec", type=Path, help="YAML file, or the name of one in sweeps/conf/search")
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="changes to it, as trials=20 launcher.partition=main")


def run(spec: Path, changes: list[str]) -> None:
    """Run the hyperparameter search of the file `spec` with the overrides `changes`, and print its result as JSON."""
    print(f"search {spec}: importing, then checking the corners of its space ...", file=sys.stderr, flush=True)
    from sweeps.search.controller import search

    print(json.dumps(search(spec, changes), indent=2), flush=True)
