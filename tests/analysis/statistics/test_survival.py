"""Survival curves and restricted means against closed forms, and against lifelines on the same data."""

import numpy as np
import pandas as pd
import pytest
from lifelines import KaplanMeierFitter
from lifelines.utils import restricted_mean_survival_time
from scipy import stats

from analysis.statistics import performance, survival

RNG = np.random.default_rng


def frame(time, event, seeds=None):
    seeds = range(len(time)) if seeds is None else seeds
    return pd.DataFrame({"seed": list(seeds), "time": time, "event": event})


def test_kaplan_meier_by_hand():
    """Times 10, 20 (censored), 30, 40 (censored): S = 3/4 after 10; at 30 two are at risk, so 3/8."""
    km = survival.kaplan_meier(np.array([10, 20, 30, 40]), np.array([True, False, True, False])).set_index("time")
    assert km.survival.to_dict() == pytest.approx({0: 1, 10: 0.75, 20: 0.75, 30: 0.375, 40: 0.375})
    assert km.at_risk.to_dict() == {0: 4, 10: 4, 20: 3, 30: 2, 40: 1}
    assert ((km.lower <= km.survival) & (km.survival <= km.upper)).all()


def test_kaplan_meier_against_lifelines():
    """Times 0, ties of a censored run and a collapse, and of two collapses, are among these."""
    rng = RNG(1)
    for _ in range(50):
        n = int(rng.integers(1, 12))
        time, event = rng.integers(0, 10, n), rng.random(n) < 0.6
        ours = survival.kaplan_meier(time, event).set_index("time")
        theirs = KaplanMeierFitter().fit(time, event)
        assert ours.survival.to_dict() == pytest.approx(theirs.survival_function_["KM_estimate"].to_dict(), abs=1e-12)
        assert ours.at_risk.to_dict() == theirs.event_table["at_risk"].to_dict()


def test_the_band_of_the_curve_is_clopper_pearson_without_censoring():
    """At 10 and 20 one and two of five have collapsed: the intervals of 4/5 and 3/5. Before, that of 5/5: down to 0.025^(1/5)."""
    km = survival.kaplan_meier(np.array([10, 20, 30, 30, 40]), np.ones(5, bool)).set_index("time")
    for time, left in ((0, 5), (10, 4), (20, 3), (30, 1), (40, 0)):
        exact = stats.binomtest(left, 5).proportion_ci(method="exact")
        assert (km.lower[time], km.upper[time]) == pytest.approx((exact.low, exact.high))
    assert km.lower[0] == pytest.approx(0.025**0.2)


def test_the_band_with_censoring_against_its_definition():
    """Times 10, 20 (censored), 30, 40 (censored). From 30 on: products of Beta(4, 1) and Beta(2, 1), one run left at risk, so
    times Beta(1, 1) below; drawn. Two moments give the quantiles of such products to within 0.01."""
    km = survival.kaplan_meier(np.array([10, 20, 30, 40]), np.array([True, False, True, False])).set_index("time")
    rng = RNG(7)
    above = rng.beta(4, 1, 400_000) * rng.beta(2, 1, 400_000)
    assert km.upper[30] == pytest.approx(np.quantile(above, 0.975), abs=0.01)
    assert km.lower[30] == pytest.approx(np.quantile(above * rng.random(400_000), 0.025), abs=0.01)
    assert km.lower[20] == pytest.approx(np.quantile(rng.beta(4, 1, 400_000) * rng.beta(2, 1, 400_000), 0.025), abs=0.01)
    assert (km.lower[40], km.upper[40]) == pytest.approx((0, km.upper[30]))  # nobody is at risk after 40


def test_rmst_uncensored_is_the_mean_of_what_was_lived_up_to_tau():
    """min(T, 50) of 10, 30, 70: (10 + 30 + 50)/3 = 30."""
    assert survival.rmst(np.array([10, 30, 70]), np.array([True] * 3), 50)[0] == pytest.approx(30)
    assert survival.rmst(np.array([100.0]), np.array([False]), 50)[0] == pytest.approx(50)


def test_rmst_against_lifelines():
    rng = RNG(0)
    for _ in range(50):
        n = int(rng.integers(2, 12))
        time, event = rng.integers(1, 15, n), rng.random(n) < 0.6
        fitted = KaplanMeierFitter().fit(time, event)
        for tau in (5, 9, 14):
            # Ties of a censored run and a collapse, and of two collapses, are among these.
            assert survival.rmst(time, event, tau)[0] == pytest.approx(restricted_mean_survival_time(fitted, t=tau), abs=1e-9)


def test_rmst_difference_of_paired_arms():
    """Gains of 10, 20, 30 by seed: mean 20, and no draw of seeds leaves 10..30; unpaired draws of the same data spread more."""
    base = np.array([10, 50, 90])
    reference = frame(base, [True] * 3)
    arm = frame(base + np.array([10, 20, 30]), [True] * 3)
    paired = survival.rmst_difference(arm, reference, 200, RNG(0))
    unpaired = survival.rmst_difference(arm, reference.assign(seed=[7, 8, 9]), 200, RNG(0))
    assert paired.value == unpaired.value == pytest.approx(20)
    assert paired.lower >= 10 and paired.upper <= 30 and unpaired.lower < -20 and unpaired.upper > 60


@pytest.mark.parametrize("event", [False, True])
def test_seeds_that_do_not_differ_give_no_interval(event):
    """No collapse at all, or all at one step: each draw is the same. A width of 0 would say that three seeds are certain."""
    arm, reference = frame([100] * 3, [False] * 3), frame([100 - 60 * event] * 3, [event] * 3)
    found = survival.rmst_difference(arm, reference, 100, RNG(0))
    assert found == pytest.approx((60.0 * event, np.nan, np.nan), nan_ok=True)
    one_run = performance.bootstrap(pd.Series([0.7]), pd.Series(["a"]), np.mean, RNG(0))
    assert one_run == pytest.approx((0.7, np.nan, np.nan), nan_ok=True)


def test_the_bootstrap_of_rmst_against_its_normal_approximation():
    """200 uncensored runs: the standard error of a difference of means is sqrt(s²/n + s²/n)."""
    rng = RNG(1)
    one, other = frame(rng.exponential(100, 200), [True] * 200), frame(rng.exponential(60, 200), [True] * 200, range(200, 400))
    found = survival.rmst_difference(one, other, 1e9, rng, reps=4000)
    error = np.sqrt(one.time.var() / 200 + other.time.var() / 200)
    assert (found.upper - found.lower) == pytest.approx(2 * 1.96 * error, rel=0.08)


def lives(*rows):
    """arm, RL steps, optimizer steps of each, time, whether it collapsed, and the outcome if it did not."""
    columns = ["arm", "step", "updates", "time", "event", "outcome"]
    return pd.DataFrame(rows, columns=columns)


def test_the_horizon_is_where_every_curve_is_known():
    """a: one collapse at 30, one watched to 60. b: all collapsed by 40, 20 before its records' end, and stays at 0 for good."""
    a = [("a", 100, 1, 30, True, "collapsed"), ("a", 60, 1, 60, False, "survived")]
    b = [("b", 30, 2, 40, True, "collapsed")]
    assert survival.horizon(lives(*a, *b)) == 60
    assert survival.horizon(lives(*b, ("c", 80, 1, 30, True, "collapsed"))) == 80  # the longest record, in optimizer steps
    assert survival.horizon(lives(("d", 50, 1, 50, True, "collapsed"), ("d", 50, 1, 50, False, "survived"), *b)) == 50


def test_an_arm_of_which_no_run_has_ended_does_not_set_the_horizon():
    waiting = [("w", 0, 1, 0, False, "unfinished"), ("w", 7, 1, 7, False, "unfinished")]
    assert survival.horizon(lives(("a", 60, 1, 60, False, "survived"), *waiting)) == 60
    assert survival.horizon(lives(*waiting)) == 0
