"""Command line of `faultline completion`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from faultline.cli.arguments import folder

HELP = "print the completion script of a shell"
DESCRIPTION = """\
Print a script that completes commands, options, choices and files of faultline.
bash: put `eval "$(faultline completion bash)"` into ~/.bashrc. zsh: save the output as _faultline in a folder of fpath."""
EXAMPLES = """\
faultline completion bash
faultline completion zsh"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `faultline completion`."""
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell that reads the script")


def run(shell: str) -> None:
    """Print the completion script for a shell."""
    import shtab

    from faultline.cli import build_parser

    parser = build_parser()
    for action in _arguments(parser):
        if action.type in (Path, folder) or action.dest == "sweep":
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab looks for it
    print(shtab.complete(parser, shell))


def _arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """All argparse actions of a parser and of its subparsers."""
    for action in parser._actions:  # as shtab itself reads them
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                yield from _arguments(subparser)
        else:
            yield action
