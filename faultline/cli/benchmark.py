"""Command line of `faultline benchmark`, which scores a loss or correction on fixed cases of rollout mismatch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from faultline.cli.arguments import plug_ins_here
from faultline.cli.arguments import seeds as seeds_type

HELP = "score a loss, an advantage or a correction of your own beside the recorded ones"
DESCRIPTION = """\
Train an entry in a few regimes of rollout mismatch with three seeds each, and print its row beside the recorded ones. It goes on
where it stopped. Options come before the entry. docs/benchmark.md explains the columns."""
EXAMPLES = """\
faultline benchmark correction=icepop
faultline benchmark loss=my_loss:saturating +loss.tau=2.0
faultline benchmark --deploy sampler correction=my_correction.yaml
faultline benchmark -m correction=icepop hydra/launcher=slurm hydra.launcher.partition=main
faultline benchmark --rules --regimes my_regimes.yaml"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `faultline benchmark`."""
    entry = (
        "overrides of a run's config; loss, advantage and correction also take module:function and FILE.yaml; keys of a launcher"
    )
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help=entry)
    parser.add_argument("--name", help="label of the row; by default the entry's words")
    parser.add_argument("--deploy", choices=("trainer", "sampler"), help="the policy that is judged; by default both")
    chosen = parser.add_mutually_exclusive_group()
    own = "YAML file with a set of regimes, NAME: overrides; by default the quick set of at most six"
    chosen.add_argument("--regimes", type=Path, metavar="FILE", help=own)
    chosen.add_argument("--full", action="store_true", help="all 39 regimes of the study of the verdict")
    parser.add_argument("--seeds", type=seeds_type, default=(), help="seeds, as 3,4,5; by default the three of the records")
    parser.add_argument("--rules", action="store_true", help="score the verdict's frozen rules on the regimes, without an entry")
    parser.add_argument("--all", action="store_true", help="print every recorded row, and not the best ten")
    parser.add_argument("-m", "--multirun", action="store_true", help=argparse.SUPPRESS)  # always so; pasted with a launcher


def run(words: list[str], regimes: Path | None, multirun: bool, **options: Any) -> None:
    """Train what `words` (overrides, plug-ins) describe in the benchmark's regimes, and print its row in the tables."""
    plug_ins_here()
    from faultline.tools.benchmark import benchmark_command

    benchmark_command(words, file=regimes, every_row=options.pop("all"), **options)
