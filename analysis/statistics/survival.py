"""Time to collapse: survival curves, exact tests for few seeds, and differences of the restricted mean survival time.

Times are in optimizer steps. `event` is True for a run that collapsed, False for one whose record ended before (administrative
censoring). The bands of Kaplan-Meier curves are those of Fay, Brittain and Proschan, which hold for few seeds.
"""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import betaincinv  # a fifth of the time that scipy.stats takes to import

ENUMERATED = 200_000
"""Permutations up to which all are enumerated; of more a sample is drawn."""
FEW = 5
"""Runs of an arm up to which each is shown.

The median of three runs hides one collapse. No interval within the range of so few values covers 95%: all n values lie on one
side of the median with probability 2^(1−n), which is 0.0625 for five.
"""
ENOUGH = 10
"""Collapses from which on times to collapse are drawn and diagnostics ranked: the best of several at a handful is chance."""


class Interval(NamedTuple):
    """An estimate with its 95% interval; without limits (NaN) where the data cannot give any."""

    value: float
    lower: float
    upper: float


def percentiles(value: float, drawn: np.ndarray) -> Interval:
    """The percentile interval of bootstrap draws. Equal draws give no limits: an interval of width 0 would claim certainty."""
    lower, upper = np.quantile(drawn, [0.025, 0.975])
    return Interval(float(value), *((float(lower), float(upper)) if lower < upper else (np.nan, np.nan)))


def kaplan_meier(time: np.ndarray, event: np.ndarray) -> pd.DataFrame:
    """Ŝ(t) = Π_{t_i ≤ t} (1 − d_i/n_i) at 0 and each time: columns time, survival, lower, upper, at_risk.

    The pointwise band, from t to the next time, is the beta product confidence procedure (Fay, Brittain and Proschan,
    Biostatistics 14:723, 2013): S(t) lies between the α/2 quantile of Π_{t_i ≤ t} Beta(n_i − d_i + 1, d_i) · Beta(n, 1), n still
    at risk after t, and the 1 − α/2 quantile without the last factor, each product approximated by the Beta of its two moments.
    Without censoring it is Clopper and Pearson's interval; before the first collapse it goes down to (α/2)^(1/n), where
    Greenwood's would have no width.
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
    """E X and E X² of Beta(a, b); 1 and 1 where b = 0."""
    return a / (a + b), a * (a + 1) / ((a + b) * (a + b + 1))


def _beta_quantile(share: float, first: np.ndarray, second: np.ndarray, sure: float) -> np.ndarray:
    """Quantile of the Beta with these moments about 0, `sure` where it has no variance."""
    variance = second - first**2
    known = variance > 1e-15
    scale = (first - second) / np.where(known, variance, 1.0)
    return np.where(known, betaincinv(np.where(known, first * scale, 1), np.where(known, (1 - first) * scale, 1), share), sure)


def rmst(time: np.ndarray, event: np.ndarray, tau: float) -> np.ndarray:
    """Restricted mean survival time ∫₀^τ Ŝ(t) dt, in steps, over the last axis of [..., n] samples.

    With nobody censored before τ it is the mean of min(T, τ).
    """
    time, event = np.atleast_2d(time).astype(float), np.atleast_2d(event)
    # At equal times collapses count before the record's ends, as a run that ended there was still at risk.
    order = np.lexsort((~event, time), axis=-1)
    time, event = np.take_along_axis(time, order, -1), np.take_along_axis(event, order, -1)
    at_risk = np.arange(time.shape[-1], 0, -1)
    survival = np.cumprod(1 - event / at_risk, axis=-1)  # one at a time, tied collapses give the same product
    before = np.concatenate([np.ones((len(time), 1)), survival], axis=-1)
    ends = np.concatenate([np.minimum(time, tau), np.full((len(time), 1), float(tau))], axis=-1)
    widths = np.diff(np.concatenate([np.zeros((len(time), 1)), ends], axis=-1), axis=-1)
    return (before * widths).sum(-1)


def rmst_difference(
    arm: pd.DataFrame, reference: pd.DataFrame, tau: float, rng: np.random.Generator, reps: int = 2000
) -> Interval:
    """RMST(arm) − RMST(reference), optimizer steps, with a percentile bootstrap over seeds.

    The frames have seed, time and event. Equal sets of seeds are drawn together, since arms of one seed share the warm start
    and the order of prompts.
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
    """Whether two arms have the same seeds, once each."""
    return sorted(one.seed) == sorted(other.seed)


def logrank_exact(time: np.ndarray, event: np.ndarray, group: np.ndarray, rng: np.random.Generator) -> float:
    """Two-sided permutation p-value of the log-rank statistic |O − E| of the runs where `group` is True.

    O − E = Σ_{i in group} (δ_i − Λ̂(t_i)), Λ̂ the Nelson-Aalen estimate of all runs: a sum of fixed scores, so the permutation
    distribution is that of sums over subsets of the same size. Enumerated up to ENUMERATED subsets, else drawn from `rng`,
    where p counts the observed one too.
    """
    return _permutation(_logrank_scores(np.asarray(time, float), np.asarray(event, bool)), group, rng)


def means_exact(values: np.ndarray, group: np.ndarray, rng: np.random.Generator) -> float:
    """Two-sided permutation p-value of the difference between the mean of the values where `group` is True and of the rest.

    Runs are permuted over both arms, not within seeds: with five pairs a sign-flip test has p ≥ 0.06, this one p ≥ 0.008.
    Where runs of one seed are alike, the difference varies less than under permutation, and p errs towards 1.
    """
    values = np.asarray(values, float)
    return _permutation(values - values.mean(), group, rng)


def difference_p(one: np.ndarray, other: np.ndarray) -> float:
    """`means_exact` of two arms, a value per run; where it draws, always the same."""
    group = np.arange(len(one) + len(other)) < len(one)
    return means_exact(np.concatenate([one, other]), group, np.random.default_rng(0))


def _permutation(scores: np.ndarray, group: np.ndarray, rng: np.random.Generator) -> float:
    """Share of the subsets of the group's size whose |sum of scores| is at least that of the group; the scores sum to 0."""
    observed, sums, drawn = permutation_sums(scores, group, rng)
    return float((drawn + (np.abs(sums) >= abs(observed) - 1e-9).sum()) / (drawn + len(sums)))


def permutation_sums(scores: np.ndarray, group: np.ndarray, rng: np.random.Generator) -> tuple[float, np.ndarray, int]:
    """(sum of the group's scores, sums of subsets of its size, 1 if these are drawn and 0 if they are all that there are).

    A p-value counts the observed subset beside drawn ones, and has it among enumerated ones.
    """
    group = np.asarray(group, bool)
    size, n = int(group.sum()), len(group)
    observed = float(scores[group].sum())
    if comb(n, size) <= ENUMERATED:
        sums = scores[np.array(list(combinations(range(n), min(size, n - size))), dtype=int)].sum(1)
        return observed, sums if size <= n - size else scores.sum() - sums, 0
    return observed, rng.permuted(np.tile(scores, (ENUMERATED // 10, 1)), axis=1)[:, :size].sum(1), 1


def _logrank_scores(time: np.ndarray, event: np.ndarray) -> np.ndarray:
    at = np.unique(time[event])
    hazard = np.array([(event & (time == t)).sum() / (time >= t).sum() for t in at])
    return event - np.array([hazard[at <= t].sum() for t in time])


def smallest_p(n: int, m: int) -> float:
    """The least two-sided p of a permutation test of n against m runs, at full separation: 2/C(n+m, n), 1/C if n ≠ m."""
    return (2 if n == m else 1) / comb(n + m, n)


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's step-down adjustment: max over j ≤ i of min(1, (m − j + 1)·p_(j)) for the p-values in order; NaN stays NaN."""
    p = np.asarray(p, float)
    adjusted = np.full(len(p), np.nan)
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    steps = (len(order) - np.arange(len(order))) * p[order]
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1) if len(order) else steps
    return adjusted


def holm_of_planned(p: list[float], planned: int) -> np.ndarray:
    """`holm` of the comparisons that have runs. Those that were `planned` and have none count with p = 1."""
    return holm(np.array(p + [1.0] * (planned - len(p))))[: len(p)]


def fraction(count: int, n: int) -> Interval:
    """count/n with Clopper and Pearson's exact interval, quantiles of Beta(count, n − count + 1) and Beta(count + 1, n − count).

    NaN of no runs at all.
    """
    if n == 0:
        return Interval(np.nan, np.nan, np.nan)
    lower = float(betaincinv(count, n - count + 1, 0.025)) if count else 0.0
    return Interval(count / n, lower, float(betaincinv(count + 1, n - count, 0.975)) if count < n else 1.0)


def horizon(runs: pd.DataFrame) -> float:
    """τ common to all arms, in optimizer steps, up to which the curve of each arm is known.

    An arm's curve is known up to its longest time. If only collapses stand there, it has reached 0 and is known for good.
    Arms without a run of known outcome are left out, since they would cut the comparison of all others short.
    """
    ends = [_known_until(mine) for _, mine in runs.groupby("arm") if (mine.outcome != "unfinished").any()]
    least = min(ends, default=0.0)
    return float(least if np.isfinite(least) else (runs.step * runs.updates).max())


def _known_until(runs: pd.DataFrame) -> float:
    last = runs.time.max()
    return np.inf if runs.event[runs.time == last].all() else float(last)
