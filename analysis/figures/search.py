"""The figure of a threshold search: healthy runs and reward against each threshold, and the parameters' importance."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from analysis.figures.style import FigureOrReason, grid, literal, short
from analysis.marks import NEUTRAL
from analysis.results import Results
from analysis.statistics.tests import fraction
from harness.run.jsonl import loads

MOST = 4
"""Maximum number of correction thresholds shown in the figure of a threshold search."""


def search(results: Results) -> FigureOrReason:
    """Draw the share of runs without a collapse (exact interval), and last held-out rewards, by threshold; or say why not."""
    home = results.folder / ".sweep" if results.folder else None
    space = _read(home / "search-spec.json").get("space") if home else None
    keys = [key for key, axis in space.items() if isinstance(axis, dict)] if isinstance(space, dict) else []
    numbers = {key: values for key in keys if len((values := _numbers(results, key)).unique()) > 1}
    if home is None or not numbers:
        return "the sweep is no search of a threshold, or one value of it alone has been tried"
    importance = _importance(_read(home / "search.json"))
    shown = list(numbers)[:MOST]
    figure, axes = grid(2 * len(shown) + bool(importance), 3 if len(shown) == 1 else 2, 2.6)
    for place, key in enumerate(shown):
        left, right = axes[2 * place : 2 * place + 2]
        _share(left, results.ended.event, numbers[key])
        final = results.rewards.final[results.ended.index]
        right.plot(numbers[key][final.index], final, "o", color=NEUTRAL, alpha=0.6, markersize=4)
        right.set_ylabel("last held-out reward")
        for axis in (left, right):
            axis.set_xlabel(literal(key), fontsize=8)
            if numbers[key].min() > 0 and numbers[key].max() > 10 * numbers[key].min():
                axis.set_xscale("log")
    if importance:
        names = sorted(importance, key=lambda name: importance[name])
        axes[-1].barh(range(len(names)), [importance[name] for name in names], color=NEUTRAL, height=0.6)
        axes[-1].set_yticks(range(len(names)), [short(name, 24) for name in names], fontsize=8)
        axes[-1].set_xlabel("importance")
        axes[-1].set_xlim(0, 1)
    return figure


def _numbers(results: Results, key: str) -> pd.Series:
    """The value of a config key for each ended run; NaN where it is no number."""
    flat = {run: results.flat[run].get(key) for run in results.ended.index}
    number = {run: float(value) for run, value in flat.items() if isinstance(value, int | float) and math.isfinite(value)}
    return pd.Series(number, dtype=float).reindex(results.ended.index)


def _share(axis: Axes, collapsed: pd.Series, value: pd.Series) -> None:
    groups = [(number, 1 - part) for number, part in collapsed.astype(int).groupby(value)]
    shares = [part.mean() for _, part in groups]
    ends = [fraction(int(part.sum()), len(part))[1:] for _, part in groups]
    errors = [[share - low for share, (low, _) in zip(shares, ends, strict=True)]]
    errors += [[high - share for share, (_, high) in zip(shares, ends, strict=True)]]
    axis.errorbar([number for number, _ in groups], shares, yerr=errors, fmt="o-", color=NEUTRAL, linewidth=1, markersize=4)
    axis.set_ylim(-0.05, 1.05)
    axis.set_ylabel("share of runs without collapse")


def _importance(result: dict[str, Any]) -> dict[str, float]:
    importance = result.get("importance")
    values = importance.items() if isinstance(importance, dict) else ()
    return {name: float(value) for name, value in values if isinstance(value, int | float) and 0 <= value <= 1}


def _read(path: Path) -> dict[str, Any]:
    """The JSON object in the file `path`; an empty dict if the file is missing or damaged."""
    try:
        value = loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
