"""Command line of `faultline gradient`, which measures the bias and variance of the gradient of each loss and correction."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from faultline.cli.arguments import CORRECTIONS, TRUST, count, folder, names, positive

HELP = "measure bias and variance of the gradient of each loss and correction"
EXAMPLES = """\
faultline gradient --enumerable
faultline gradient --enumerable --losses ppo,gspo --corrections none,icepop --noise 0.5
faultline train actor.scoring=exact steps=40 run.sweep=first
faultline gradient runs/first/* --prompts 16 --batches 8 --reference 16"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `faultline gradient`."""
    parser.add_argument("checkpoint", type=Path, nargs="?", help="a run folder, or <run folder>/checkpoints/step-<n>")
    parser.add_argument("--enumerable", action="store_true", help="compute exactly, on a policy whose responses are all listed")
    parser.add_argument("--noise", type=positive(10), default=0.3, help="sd of logit noise with --enumerable (0.3)")
    parser.add_argument("--losses", type=names, metavar="NAMES", help="as ppo,gspo; by default the run's own, or pg")
    parser.add_argument("--corrections", type=names, metavar="NAMES", help=f"{CORRECTIONS}; by default a selection")
    parser.add_argument("--prompts", type=count(2), default=64, help="prompts of a batch, each with the run's group size (64)")
    parser.add_argument("--batches", type=count(2), default=32, help="frozen batches from the rollout engine (32)")
    parser.add_argument("--reference", type=count(2), help="fresh batches of the trainer's own policy (64)")
    parser.add_argument("--paired", action="store_true", help="compare with no correction on the same batches alone")
    parser.add_argument("--layers", type=count(1), help="by the parameters of the last so many blocks and the last norm (all)")
    parser.add_argument("--seed", type=count(0), default=0, help="seed of prompts and samples (0)")
    parser.add_argument("--out", type=folder, help="folder of the page and the CSV file; by default beside the run's checkpoints")
    parser.add_argument("--trust", action="store_true", help=TRUST)


def run(checkpoint: Path | None, **options: Any) -> None:
    """Compare the gradients of losses and corrections, and print the path of the page, or of the table with --paired."""
    from faultline.tools.gradient.command import gradient_command

    written = gradient_command(checkpoint, **options).resolve()
    print(f"{'Table' if options['paired'] else 'Page'}: {written}")
