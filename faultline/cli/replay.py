"""Command line of `faultline replay`, which says whether a dump has a fault and whether it needs a correction."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from faultline.cli.arguments import CORRECTIONS, folder, names, new_file, positive

HELP = "say whether a dump has a fault, whether it needs a correction, and what each would do to it"
DESCRIPTION = """\
Say whether a dump has a fault, whether it needs a correction, and what each correction would do to it.

Exit code: 0 with a verdict, 2 on wrong input, 3 where the log-probabilities have a fault or are not explained by rounding.
With --gate: 4 where a gate fails, 5 where none fails and one is undecided."""
FAULT, FAILED, UNDECIDED = 3, 4, 5
"""Exit codes of `faultline replay`; the first that applies counts. FAULT: the diagnosis is not `consistent`. FAILED: a gate (a
bound on a metric) fails. UNDECIDED: a gate is undecided."""
EXAMPLES = """\
faultline replay --example
faultline replay --example raw
faultline replay --example processed
faultline train rollout/precision=fp8_tensor dump.every=10 steps=40 run.sweep=dumped
faultline replay runs/dumped/*
faultline replay runs/dumped/* --corrections icepop,skyrl/token_tis --all
faultline replay --example bf16 --precision bf16 --gate 'k3<2e-3,ess_token>0.95' --junit replay.xml"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `faultline replay`."""
    own = "a file (.parquet, .jsonl, .pkl, .pt), a folder of them, or a run folder"
    parser.add_argument("dump", type=Path, nargs="?", help=own)
    shipped = "instead of a dump: a shipped one of SmolLM2-135M, in FP8 (default) or BF16; raw is faulty, processed mended"
    parser.add_argument("--example", nargs="?", const="fp8", choices=("fp8", "bf16", "raw", "processed"), help=shipped)
    parser.add_argument("--corrections", type=names, metavar="NAMES", help=f"{CORRECTIONS}; by default all presets")
    parser.add_argument("--null", type=Path, metavar="DUMP", help="dump of a run without mismatch: adds the false rejections")
    keep = "share of tokens that a proposed filter keeps (0.99)"
    parser.add_argument("--keep", type=positive(1), metavar="SHARE", default=0.99, help=keep)
    ess = "effective sample size of a proposed truncation, as a share (0.9)"
    parser.add_argument("--ess", type=positive(1), default=0.9, help=ess)
    rounded = "coarser format of sampler and trainer, as bf16 or fp8_channel: K3 is compared with its rounding"
    parser.add_argument("--precision", metavar="FORMAT", help=rounded)
    sound = "dump of this model without a fault: K3 is compared with its K3, more strictly than with --precision"
    parser.add_argument("--baseline", type=Path, metavar="DUMP", help=sound)
    deployed = "the policy that is deployed; by default the verdict speaks of both"
    parser.add_argument("--deploy", choices=("trainer", "sampler"), help=deployed)
    gates = "bounds that the interval of a metric must keep, separated by commas, as k3<2e-3,ess_token>0.95; docs/gate.md"
    parser.add_argument("--gate", type=names, metavar="BOUNDS", help=gates)
    parser.add_argument("--junit", type=new_file, metavar="FILE", help="write diagnosis and gates as a JUnit file")
    parser.add_argument("--skip-bad", action="store_true", help="leave bad rows out and count them")
    parser.add_argument("--out", type=folder, help="folder of the page and the CSV files; by default replay in the dump's folder")
    parser.add_argument("--recommend", nargs=0, action=_Removed, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--all", action="store_true", help="print every table after the verdict")
    shown.add_argument("--json", action="store_true", help="print the verdict as JSON and nothing else; docs/replay.md")


def run(dump: Path | None, **options: Any) -> None:
    """Print the verdict on a dump or a shipped example, and write its page. Raises SystemExit: FAULT, FAILED or UNDECIDED."""
    from faultline.tools.replay.command import replay_command

    renamed = {"example": "example_name", "all": "tables", "json": "as_json", "gate": "gates"}
    verdict = replay_command(dump, **{renamed.get(name, name): value for name, value in options.items()})
    outcomes = {gate.outcome for gate in verdict.gates}
    holds = {FAULT: not verdict.diagnosis.consistent, FAILED: "fail" in outcomes, UNDECIDED: "undecided" in outcomes}
    if code := next((code for code in holds if holds[code]), 0):
        sys.stdout.flush()  # a closed pipe raises here, and not when the interpreter ends
        raise SystemExit(code)


class _Removed(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        parser.error("--recommend is gone: the verdict proposes bounds by itself; leave it out")
