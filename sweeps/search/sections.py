"""Search for one monotone threshold by k-section: the next points to try between a healthy and a collapsing value."""

from __future__ import annotations

import math
from typing import NamedTuple


class Point(NamedTuple):
    """A tried threshold, or its distance from 1, as `number`. of: its number of runs. collapsed: how many of them collapsed."""

    number: float
    collapsed: int
    of: int

    @property
    def healthy(self) -> bool:
        """Whether at most half of the runs with this number collapsed."""
        return 2 * self.collapsed <= self.of


class Step(NamedTuple):
    """Next step of a k-section. tries: numbers to try with new seeds; empty once the search is over.

    bracket: the last tried number at which at most half of the runs collapse, and the first one beyond it; None if missing.
    """

    tries: list[float]
    bracket: tuple[float | None, float | None]


def next_step(points: list[Point], healthy_end: float, other_end: float, k: int, tolerance: float, boundary: int) -> Step:
    """Choose the next numbers to try, given all points so far. Runs with equal numbers are pooled.

    A number is healthy if at most half of its runs collapse. healthy_end, other_end: ends of the range; the first is expected to
    be healthy. k: how many numbers to try at a time. The search is over once the last healthy and the first unhealthy number
    differ at most by the factor `tolerance` and have at least `boundary` runs each.
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
