"""Command line of `faultline doctor`, which lists the rollout formats that this machine can compute."""

from __future__ import annotations

import argparse
import sys

HELP = "list what the engines can compute rollouts in on this machine"
EXAMPLES = """\
faultline doctor
faultline doctor --parity"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `faultline doctor`."""
    parser.add_argument("--parity", action="store_true", help="compare actor, local engine and vLLM in every precision")


def run(parity: bool) -> None:
    """Print library versions, device and rollout formats of this machine. parity: also compare the engines' log-probabilities."""
    print("importing torch and asking the engines ...", file=sys.stderr, flush=True)
    from faultline.tools.doctor import doctor

    doctor(parity)
