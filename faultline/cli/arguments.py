"""Types of arguments. Each error names the value and what is accepted."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable

CORRECTIONS = "names of presets, or YAML files like those in experiments/conf/correction, separated by commas"


def names(text: str) -> list[str]:
    """Names separated by commas."""
    return text.split(",")


def seeds(text: str) -> tuple[int, ...]:
    """Whole numbers separated by commas."""
    try:
        return tuple(int(seed) for seed in text.split(","))
    except ValueError:
        raise ArgumentTypeError(f"{text}: accepted are whole numbers separated by commas, as 3,4,5") from None


def count(least: int) -> Callable[[str], int]:
    """A whole number of at least `least`."""

    def convert(text: str) -> int:
        if not text.isdigit() or int(text) < least:
            raise ArgumentTypeError(f"{text}: accepted are whole numbers of at least {least}")
        return int(text)

    return convert


def positive(most: float) -> Callable[[str], float]:
    """A number in (0, most]."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0 < value <= most:
            raise ArgumentTypeError(f"{text}: accepted are numbers above 0, up to {most:g}")
        return value

    return convert
