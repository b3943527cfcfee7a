"""Types for argparse arguments. On a bad value, each raises an error that names the value and what is accepted."""

from __future__ import annotations

import os
import re
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path

from faultline.rooms import beside_others
from harness.errors import UserError

CORRECTIONS = "names of presets, or YAML files like those in experiments/conf/correction, separated by commas"


TRUST = "import code that a run names as package.module:attribute; only if you trust whoever wrote it"


def names(text: str) -> list[str]:
    """Parse names separated by commas."""
    return text.split(",")


def seeds(text: str) -> tuple[int, ...]:
    """Parse seeds: whole numbers separated by commas."""
    if not re.fullmatch(r"[0-9]{1,18}(,[0-9]{1,18})*", text):
        raise ArgumentTypeError(f"{text}: accepted are whole numbers separated by commas, as 3,4,5")
    return tuple(int(seed) for seed in text.split(","))


def count(least: int) -> Callable[[str], int]:
    """Return an argparse type that accepts whole numbers of at least `least`."""

    def convert(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < least:
            raise ArgumentTypeError(f"{text}: accepted are whole numbers of at least {least}")
        return int(text)

    return convert


def port(text: str) -> int:
    """Parse a network port that needs no administrator rights, 1024 to 65535."""
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1024 <= int(text) <= 65535:
        raise ArgumentTypeError(f"{text}: accepted are ports from 1024 to 65535")
    return int(text)


def folder(text: str) -> Path:
    """Parse the path of a folder, new or old. Raises ArgumentTypeError if the path or one of its parents is a file."""
    path = Path(text)
    for place in (path, *path.parents):
        if place.exists() and not place.is_dir():
            raise ArgumentTypeError(f"{place} is a file; name a folder")
    return path


def new_file(text: str) -> Path:
    """Parse the path of a file to write. Raises ArgumentTypeError if it is a folder, or if one of its parents is a file."""
    path = Path(text)
    if path.is_dir():
        raise ArgumentTypeError(f"{path} is a folder; name a file")
    folder(str(path.parent))
    return path


def positive(most: float) -> Callable[[str], float]:
    """Return an argparse type that accepts numbers in (0, most]."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0 < value <= most:
            raise ArgumentTypeError(f"{text}: accepted are numbers above 0, up to {most:g}")
        return value

    return convert


def plug_ins_here() -> None:
    """Make the modules (plug-ins) in the working directory importable, as `python -m` does.

    Raises UserError if a module there has the name of one of this project.
    """
    if not sys.flags.safe_path and os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
        try:
            beside_others()
        except ImportError as error:
            raise UserError(str(error)) from None
