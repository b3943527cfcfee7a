"""`faultline replay`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from faultline.cli.arguments import CORRECTIONS, names, positive

HELP = "compute what each correction at each threshold would have done to a dump"
EXAMPLES = """\
faultline train rollout/precision=fp8_tensor dump.every=10 steps=40 run.sweep=dumped
faultline replay runs/dumped/*
faultline replay runs/dumped/* --corrections icepop,skyrl/token_tis --recommend"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `faultline.cli.Command`."""
    parser.add_argument("dump", type=Path, help="a file (.parquet, .jsonl, .pkl, .pt), a folder of them, or a run folder")
    parser.add_argument("--corrections", type=names, metavar="NAMES", help=f"{CORRECTIONS}; by default all presets")
    parser.add_argument("--null", type=Path, metavar="DUMP", help="dump of a run without mismatch: adds the false rejections")
    parser.add_argument("--recommend", action="store_true", help="propose bounds from the data")
    parser.add_argument("--keep", type=positive(1), metavar="SHARE", help="share of tokens that a proposed filter keeps (0.99)")
    parser.add_argument("--ess", type=positive(1), help="effective sample size of a proposed truncation, as a share (0.9)")
    parser.add_argument("--skip-bad", action="store_true", help="leave bad rows out and count them")
    parser.add_argument("--out", type=Path, help="folder of the page and the CSV files; by default replay in the dump's folder")


def run(dump: Path, **options: Any) -> None:
    """Write the page and print its path."""
    from faultline.tools.replay.command import replay_command

    print(f"Page: {replay_command(dump, **options).resolve()}")
