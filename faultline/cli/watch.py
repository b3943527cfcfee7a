"""Command line of `faultline watch`, which shows a running sweep as a local page or in the terminal."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from faultline.cli.arguments import port

HELP = "follow a sweep under way: progress, curves, alarms and failures, as a local page or in the terminal"
DESCRIPTION = """\
Follow a sweep under way: progress of each arm, curves, alarms as they fire, what failed with the end of its log, pace and
time left. The page is on 127.0.0.1 alone and changes nothing. Ctrl-C ends it; the runs go on."""
EXAMPLES = """\
faultline watch runs/demo
faultline watch runs/demo --tui
faultline watch runs/demo --port 8123"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `faultline watch`."""
    parser.add_argument("sweep", type=Path, help="its folder, as runs/demo")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--port", type=port, default=0, help="of the page; by default a free one")
    shown.add_argument("--tui", action="store_true", help="in the terminal, for SSH; it ends once all runs have ended")


def run(**arguments: Any) -> None:
    """Serve the page that shows runs live and print its address, or show the runs in the terminal if `tui` is true."""
    from sweeps.watch.command import watch

    watch(**arguments)
