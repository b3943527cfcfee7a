"""Search for one monotone threshold by k-section: the next points to try between a healthy and a collapsing value."""

from __future__ import annotations

import math
from typing import NamedTuple


class Point(NamedTuple):
    """A tried number: a threshold or its distance from 1. of: number of runs with it. collapsed: how many of them collapsed."""

    number: float
    collapsed: int
    of: int

    @property
    def healthy(self) -> bool:
        """Whether at most half of the runs with this number collapsed."""
        return 2 * self.collapsed <= self.of


class Step(NamedTuple):
    """Step of a k-section. tries: numbers to try with new seeds. bracket: (last healthy, first collapsing) number or None."""

    tries: list[float]
    bracket: tuple[float | None, float | None]


def next_step(points: list[Point], healthy_end: float, other_end: float, k: int, tolerance: float, boundary: int) -> Step:
    """Choose the next numbers to try, given all points so far. Runs with equal numbers are pooled.

    healthy_end, other_end: the ends of the range, of which the first does not collapse. k: numbers to try at a time. No number is
    left to try once both sides of the boundary lie within the ratio `tolerance` and have at least `boundary` runs each.
    """
    pooled: dict[float, Point] = {}
    for point in points:
        before = pooled.get(point.number, Point(point.number, 0, 0))
        pooled[point.number] = Point(point.number, before.collapsed + point.collapsed, before.of + point.of)
    if not pooled:
        return Step([healthy_end, *_between(healthy_end, other_end, max(0, k - 2)), other_end], (None, None))
    ordered = sorted(pooled.values(), key=lambda point: abs(math.log(point.number / healthy_end)))
    first = next((i for i, point in enumerate(ordered) if not point.healthy), len(ordered))
    inner = ordered[first - 1] if first else None
    outer = ordered[first] if first < len(ordered) else None
    bracket = (inner and inner.number, outer and outer.number)
    if inner and outer and abs(math.log(outer.number / inner.number)) > math.log(tolerance):
        return Step(_between(inner.number, outer.number, k), bracket)
    sides = [side for side in (inner, outer) if side is not None]
    return Step([side.number for side in sides if side.of < boundary], bracket)


def _between(a: float, b: float, k: int) -> list[float]:
    """Return the k numbers that divide [a, b] into k + 1 intervals of equal ratio."""
    return [a * (b / a) ** ((i + 1) / (k + 1)) for i in range(k)]
