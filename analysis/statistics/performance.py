"""Averages of rewards over seeds: interquartile mean and mean, with bootstrap intervals, stratified or paired by seed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from analysis.statistics.tests import Interval, percentiles

HEALTHY = 0.95
"""Least held-out reward at which a run counts as healthy, on a task that can be solved perfectly."""
FEWEST = 4
"""Evaluations from which on a collapse of the held-out reward, or learning, can show: the first, and three after it."""


def iqm(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """Interquartile mean of values without NaN: a quarter, rounded down, is left out at each end. It hides rare collapses."""
    n = values.shape[axis]
    kept = range(n // 4, n - n // 4)
    return np.partition(values, (kept[0], kept[-1]), axis).take(kept, axis).mean(axis)


def bootstrap(
    values: pd.Series, strata: pd.Series, statistic: Callable[..., np.ndarray], rng: np.random.Generator, reps: int = 2000
) -> Interval:
    """`statistic` of all values, with a 95% interval by a bootstrap within strata, too narrow for fewer than six values."""
    groups = [group.to_numpy(float) for _, group in values.groupby(strata.to_numpy())]
    drawn = np.concatenate([group[rng.integers(0, len(group), (reps, len(group)))] for group in groups], axis=1)
    point = float(statistic(np.concatenate(groups)))
    return percentiles(point, statistic(drawn, axis=-1))


def paired_difference(one: pd.Series, other: pd.Series, rng: np.random.Generator, reps: int = 2000) -> Interval:
    """Mean of one − other over the seeds (the index) that both have, with a percentile bootstrap over these seeds."""
    both = one.index.intersection(other.index)
    differences = (one[both] - other[both]).to_numpy(float)
    drawn = differences[rng.integers(0, len(differences), (reps, len(differences)))].mean(1)
    return percentiles(differences.mean(), drawn)


def rewards(runs: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """A row per run with its last held-out reward, `final`, and its best, `best`, which alone would hide a collapse."""
    if "eval/reward" not in steps:
        return pd.DataFrame(np.nan, index=runs.index, columns=["final", "best"])
    grouped = steps[["run", "eval/reward"]].dropna().groupby("run", observed=True)["eval/reward"]
    return pd.DataFrame({"final": grouped.last(), "best": grouped.max()}).reindex(runs.index)
