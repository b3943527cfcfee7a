"""Time to collapse: survival curves, exact tests for few seeds, and the steps of health that an arm gains.

Times are in optimizer steps, event is True where a run collapsed and False where its record ended before (administrative
censoring). Kaplan-Meier curves, with Greenwood's variance and log-log bands, are lifelines'.
"""

from __future__ import annotations

from itertools import combinations, product
from math import comb
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import binomtest

ENUMERATED = 200_000
"""Permutations that are enumerated; of more than these a sample is drawn."""


class Interval(NamedTuple):
    """An estimate with its 95 % interval."""

    value: float
    lower: float
    upper: float


def kaplan_meier(time: np.ndarray, event: np.ndarray) -> pd.DataFrame:
    """Ŝ(t) = Π_{t_i ≤ t} (1 − d_i/n_i) at 0 and each time: columns time, survival, lower, upper, at_risk."""
    from lifelines import KaplanMeierFitter

    fitted = KaplanMeierFitter().fit(time, event, label="survival")
    band = fitted.confidence_interval_
    out = pd.DataFrame({"survival": fitted.survival_function_["survival"], "lower": band.iloc[:, 0], "upper": band.iloc[:, 1]})
    out["at_risk"] = fitted.event_table["at_risk"]
    return out.rename_axis("time").reset_index()


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
    """RMST(arm) − RMST(reference): steps of health gained, with a percentile bootstrap over seeds.

    Frames with seed, time, event. Where both have the same seeds these are drawn together: arms of a seed share the warm start
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
    return Interval(float(value[0]), *map(float, np.quantile(drawn, [0.025, 0.975])))


def paired_by_seed(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    """Whether two arms have the same seeds, once each."""
    return sorted(one.seed) == sorted(other.seed)


def logrank_exact(time: np.ndarray, event: np.ndarray, group: np.ndarray, rng: np.random.Generator) -> float:
    """Two-sided permutation p-value of the log-rank statistic |O − E| of the runs where `group` is True.

    O − E = Σ_{i in group} (δ_i − Λ̂(t_i)), Λ̂ the Nelson-Aalen estimate of all runs: a sum of fixed scores, so the permutation
    distribution is that of sums over subsets of the same size. Enumerated up to ENUMERATED subsets, else drawn from `rng`,
    where p counts the observed one too.
    """
    group = np.asarray(group, bool)
    scores = _logrank_scores(np.asarray(time, float), np.asarray(event, bool))
    size, n = int(group.sum()), len(group)
    observed = abs(scores[group].sum())
    if comb(n, size) <= ENUMERATED:
        sums = np.array([scores[list(subset)].sum() for subset in combinations(range(n), size)])
        return float((np.abs(sums) >= observed - 1e-9).mean())
    drawn = np.array([scores[rng.permutation(n)[:size]].sum() for _ in range(ENUMERATED // 10)])
    return float((1 + (np.abs(drawn) >= observed - 1e-9).sum()) / (1 + len(drawn)))


def _logrank_scores(time: np.ndarray, event: np.ndarray) -> np.ndarray:
    at = np.unique(time[event])
    hazard = np.array([(event & (time == t)).sum() / (time >= t).sum() for t in at])
    return event - np.array([hazard[at <= t].sum() for t in time])


def sign_flip(differences: np.ndarray, rng: np.random.Generator) -> float:
    """Two-sided p-value of the mean of paired differences, over all 2^n signs (drawn from `rng` past ENUMERATED)."""
    differences = np.asarray(differences, float)
    n = len(differences)
    if 2**n <= ENUMERATED:
        signs = np.array(list(product([-1, 1], repeat=n)))
        return float((np.abs(signs @ differences) >= abs(differences.sum()) - 1e-9).mean())
    signs = rng.choice([-1, 1], (ENUMERATED // 10, n))
    return float((1 + (np.abs(signs @ differences) >= abs(differences.sum()) - 1e-9).sum()) / (1 + len(signs)))


def smallest_p(n: int, m: int) -> float:
    """The least two-sided p of the exact log-rank test of n against m runs, at full separation: 2/C(n+m, n), 1/C if n ≠ m."""
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


def fraction(count: int, n: int) -> Interval:
    """count/n with Clopper and Pearson's exact interval."""
    band = binomtest(int(count), int(n)).proportion_ci(method="exact")
    return Interval(count / n, band.low, band.high)


def horizon(runs: pd.DataFrame) -> float:
    """τ common to all arms, optimizer steps: the smallest over arms of the longest record, so that each was watched until there.

    A run that collapsed was watched until its record ended.
    """
    return float((runs.step * runs.updates).groupby(runs.arm).max().min())
