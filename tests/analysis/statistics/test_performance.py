"""Interquartile mean, bootstrap and paired difference against hand arithmetic and scipy."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.statistics import performance

RNG = np.random.default_rng


def test_iqm_by_hand():
    """Eight values lose two at each end: (2 + 3 + 4 + 5)/4 = 3.5. Five values lose one at each end."""
    assert performance.iqm(np.array([0, 100, 2, 3, 4, 5, -9, 99.0])) == 3.5
    assert performance.iqm(np.array([0, 1, 2, 3, 100.0])) == 2


def test_the_bootstrap_against_scipy():
    rng = RNG(3)
    values = rng.random(12)
    ours = performance.bootstrap(pd.Series(values), pd.Series(["one"] * 12), performance.iqm, rng, reps=20_000)
    theirs = stats.bootstrap((values,), performance.iqm, method="percentile", n_resamples=20_000, rng=rng).confidence_interval
    assert (ours.lower, ours.upper) == pytest.approx((theirs.low, theirs.high), abs=0.01)
    assert ours.value == performance.iqm(values)


def test_the_bootstrap_draws_within_strata():
    """Strata at 0 and 1 with little spread inside: a draw's mean is in 0.5..0.6; drawn over both it would go from 0 to 1."""
    values, strata = pd.Series([0.0, 0, 0.1, 1, 1, 1.1]), pd.Series(list("aaabbb"))
    found = performance.bootstrap(values, strata, np.mean, RNG(0))
    assert found.value == pytest.approx(3.2 / 6) and 0.5 <= found.lower < found.upper <= 0.6


def test_the_bootstrap_covers_as_often_as_it_says():
    """Means of 30 normal values. The percentile interval is ±1.96·sqrt(29/30) standard errors, so by Student's t of 29 degrees it
    covers P(|t| < 1.927) = 93.6 %; of 1000 samples ±2.3 % (three standard errors)."""
    rng = RNG(4)
    hits = 0
    for _ in range(1000):
        found = performance.bootstrap(pd.Series(rng.normal(size=30)), pd.Series(["one"] * 30), np.mean, rng, reps=500)
        hits += found.lower <= 0 <= found.upper
    expected = 1 - 2 * stats.t.sf(stats.norm.ppf(0.975) * np.sqrt(29 / 30), 29)
    assert hits / 1000 == pytest.approx(expected, abs=0.023)


def test_a_paired_difference_uses_the_seeds_that_both_have():
    one, other = pd.Series([1.0, 2, 9], index=[0, 1, 5]), pd.Series([0.5, 1.5, 7], index=[0, 1, 2])
    assert performance.paired_difference(one, other, RNG(0)) == pytest.approx((0.5, np.nan, np.nan), nan_ok=True)
    one[1] = 2.1  # differences 0.5 and 0.6: of four equally likely draws the extremes are 0.5 and 0.6
    assert performance.paired_difference(one, other, RNG(0)) == pytest.approx((0.55, 0.5, 0.6))
