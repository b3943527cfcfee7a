"""Time to collapse of runs: survival curves with their bands, and differences of the restricted mean survival time.

Times are in optimizer steps. `event` is True for a run that collapsed, False for one whose record ended before (administrative
censoring). The bands of Kaplan-Meier curves are those of Fay, Brittain and Proschan, which hold for few seeds.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.special import betaincinv  # a fifth of the time that scipy.stats takes to import

from analysis.statistics.tests import Interval, percentiles

FEW = 5
"""Maximum number of runs of an arm that are shown one by one, because they are too few for a 95% interval: the range of five
values contains the median with a probability below 95%."""
ENOUGH = 10
"""Minimum number of collapses for drawing times to collapse and ranking diagnostics. With fewer, chance decides the ranking."""


def kaplan_meier(time: np.ndarray, event: np.ndarray) -> pd.DataFrame:
    """The Kaplan-Meier curve Ŝ(t) = Π_{t_i ≤ t} (1 − d_i/n_i): a row at 0 and each time t_i, with d_i collapses of n_i at risk.

    Columns: time, survival, lower, upper, at_risk. time [n]: optimizer steps until a run collapsed or its record ended. event
    [n]: whether it collapsed.

    The pointwise band (α = 0.05), from t to the next time, is the beta product confidence procedure (Fay, Brittain and Proschan,
    Biostatistics 14:723, 2013). S(t) lies above the α/2 quantile of Π_{t_i ≤ t} Beta(n_i − d_i + 1, d_i) · Beta(n, 1), with n
    still at risk after t, and below the 1 − α/2 quantile without the last factor. Each product is approximated by the Beta
    distribution of its first two moments. Without censoring the band is Clopper and Pearson's interval; before the first collapse
    it goes down to (α/2)^(1/n), where Greenwood's would have no width.
    """
    at = np.unique([0, *time])
    risk = (time >= at[:, None]).sum(1).astype(float)
    died = (event & (time == at[:, None])).sum(1).astype(float)
    first, second = _moments(risk - died + 1, died)
    first, second = np.cumprod(first), np.cumprod(second)
    upper = _beta_quantile(0.975, first, second, 1.0)
    after = (time > at[:, None]).sum(1).astype(float)
    one, two = _moments(after, np.ones_like(after))
    lower = np.where(after > 0, _beta_quantile(0.025, first * one, second * two, 0.0), 0.0)
    survival = np.cumprod(1 - died / risk)
    return pd.DataFrame({"time": at, "survival": survival, "lower": lower, "upper": upper, "at_risk": risk})


def _moments(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The moments E X and E X² of Beta(a, b); both are 1 where b = 0."""
    return a / (a + b), a * (a + 1) / ((a + b) * (a + b + 1))


def _beta_quantile(share: float, first: np.ndarray, second: np.ndarray, sure: float) -> np.ndarray:
    """The quantile `share` of the Beta distribution with E X = `first` and E X² = `second`; `sure` where its variance is 0."""
    variance = second - first**2
    known = variance > 1e-15
    scale = (first - second) / np.where(known, variance, 1.0)
    return np.where(known, betaincinv(np.where(known, first * scale, 1), np.where(known, (1 - first) * scale, 1), share), sure)


def rmst(time: np.ndarray, event: np.ndarray, tau: float) -> np.ndarray:
    """Restricted mean survival time ∫₀^τ Ŝ(t) dt of samples [..., n] of n runs, in steps; uncensored, the mean of min(T, τ)."""
    time, event = np.atleast_2d(time).astype(float), np.atleast_2d(event)
    # At equal times collapses count before censored ends, since a run that ended there was still at risk.
    order = np.lexsort((~event, time), axis=-1)
    time, event = np.take_along_axis(time, order, -1), np.take_along_axis(event, order, -1)
    at_risk = np.arange(time.shape[-1], 0, -1)
    survival = np.cumprod(1 - event / at_risk, axis=-1)  # tied collapses, taken one at a time, give the same product
    before = np.concatenate([np.ones((len(time), 1)), survival], axis=-1)
    ends = np.concatenate([np.minimum(time, tau), np.full((len(time), 1), float(tau))], axis=-1)
    widths = np.diff(np.concatenate([np.zeros((len(time), 1)), ends], axis=-1), axis=-1)
    return (before * widths).sum(-1)


def rmst_difference(
    arm: pd.DataFrame, reference: pd.DataFrame, tau: float, rng: np.random.Generator, reps: int = 2000
) -> Interval:
    """Mean survival time up to step `tau` of the runs `arm` minus that of `reference`, in optimizer steps; bootstrap over seeds.

    arm, reference: a row per run with seed, time, event. If both have the same seeds, they are resampled together, since a seed
    fixes the warm start and the order of prompts.
    """
    one, other = arm.sort_values("seed"), reference.sort_values("seed")
    picks = rng.integers(0, len(one), (reps, len(one)))
    paired = paired_by_seed(one, other)
    others = picks if paired else rng.integers(0, len(other), (reps, len(other)))
    a_time, a_event = one.time.to_numpy(), one.event.to_numpy(bool)
    b_time, b_event = other.time.to_numpy(), other.event.to_numpy(bool)
    value = rmst(a_time, a_event, tau) - rmst(b_time, b_event, tau)
    drawn = rmst(a_time[picks], a_event[picks], tau) - rmst(b_time[others], b_event[others], tau)
    return percentiles(value[0], drawn)


def paired_by_seed(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    """Whether two groups of runs have the same seeds, so that they can be compared seed by seed."""
    return sorted(one.seed) == sorted(other.seed)


def horizon(runs: pd.DataFrame) -> float:
    """The latest time τ in optimizer steps up to which the survival curve of every arm (runs alike but for the seed) is known.

    An arm's curve is known up to its longest time. If all runs at that time collapsed, the curve is 0 and known for good.
    Arms without a run of known outcome are left out, since they would cut the comparison of all others short.
    """
    ends = [_known_until(mine) for _, mine in runs.groupby("arm") if (mine.outcome != "unfinished").any()]
    least = min(ends, default=0.0)
    return float(least if np.isfinite(least) else (runs.step * runs.updates).max())


def _known_until(runs: pd.DataFrame) -> float:
    last = runs.time.max()
    return np.inf if runs.event[runs.time == last].all() else float(last)
