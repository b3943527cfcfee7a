"""The `faultline` command, with one module per subcommand, which imports what it needs when it runs, so `--help` is fast."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from textwrap import indent
from typing import Any, Protocol

from faultline.cli import (
    benchmark,
    branch,
    doctor,
    gradient,
    import_config,
    memory,
    power,
    replay,
    report,
    score,
    search,
    sweep,
    train,
    watch,
)
from harness import boundary


class Command(Protocol):
    """Interface of a subcommand of `faultline`, which is a module in faultline/cli."""

    HELP: str
    """One-line description of the subcommand in the list of commands."""
    EXAMPLES: str
    """Example commands for the help, one per line. Each can be run unchanged."""

    run: Callable[..., None]
    """Function that does the subcommand's work. It raises UserError on mistakes that the user can correct."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the subcommand's arguments, which are the parameters of `run`."""


COMMANDS: dict[str, Command] = {
    "train": train,
    "sweep": sweep,
    "search": search,
    "benchmark": benchmark,
    "branch": branch,
    "watch": watch,
    "report": report,
    "power": power,
    "replay": replay,
    "score": score,
    "gradient": gradient,
    "import-config": import_config,
    "memory": memory,
    "doctor": doctor,
}


def main(words: Sequence[str] | None = None) -> None:
    """Run `faultline` with the arguments `words`, by default sys.argv[1:]. `harness.boundary` turns errors into messages."""
    words = sys.argv[1:] if words is None else list(words)
    with boundary.command():
        if words[:1] == ["train"]:  # Hydra reads its own command line, --help too
            train.run(words[1:])
        else:
            arguments = vars(build_parser().parse_args(words))
            COMMANDS[arguments.pop("command")].run(**arguments)


def build_parser() -> argparse.ArgumentParser:
    """Build the `faultline` parser with all subcommands."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="faultline",
        description="Tell whether rollout engine and trainer disagree by a bug, how far, and what corrections do about it.",
        epilog=_examples("faultline doctor\nfaultline train --help\nfaultline replay --help"),
        formatter_class=form,
    )
    parser.add_argument("--version", action=_Version, nargs=0, dest=argparse.SUPPRESS, help="print the version and exit")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, command in COMMANDS.items():
        description = getattr(command, "DESCRIPTION", f"{command.HELP[0].upper()}{command.HELP[1:]}.")
        subparser = commands.add_parser(
            name, help=command.HELP, description=description, epilog=_examples(command.EXAMPLES), formatter_class=form
        )
        command.add_arguments(subparser)
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version  # a third of the start-up, so only when it is asked for

        print(f"faultline {version('faultline')}")
        parser.exit()


def _examples(commands: str) -> str:
    return f"examples:\n{indent(commands, '  ')}"
