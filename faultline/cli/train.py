"""Command line of `faultline train`, which is equivalent to `python -m experiments.train`."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence

from faultline.cli.arguments import plug_ins_here

HELP = "train one run, or with -m a grid of runs; Hydra overrides follow"
EXAMPLES = """\
faultline train rollout/precision=fp8_tensor correction=token_truncate steps=40
faultline train -m hydra/launcher=local seed=0,1 rollout/precision=bf16,fp8_tensor run.sweep=first steps=40
faultline train --help"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `faultline train` for `faultline --help`. In a run, Hydra parses them."""
    parser.add_argument("overrides", nargs=argparse.REMAINDER, metavar="KEY=VALUE", help="Hydra's options and overrides")


def run(overrides: Sequence[str]) -> None:
    """Run `experiments.train` as `python -m` does. Plug-ins in the working directory can be imported."""
    sys.argv[1:] = overrides
    plug_ins_here()
    runpy.run_module("experiments.train", run_name="__main__", alter_sys=True)
