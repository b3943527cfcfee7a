"""Each statistic against a closed form, an enumeration or another package on the same data."""

from itertools import permutations
from math import comb

import numpy as np
import pandas as pd
import pytest
from lifelines import KaplanMeierFitter
from lifelines.statistics import logrank_test
from lifelines.utils import restricted_mean_survival_time
from scipy import stats

from analysis.statistics import performance, survival

RNG = np.random.default_rng


def frame(time, event, seeds=None):
    seeds = range(len(time)) if seeds is None else seeds
    return pd.DataFrame({"seed": list(seeds), "time": time, "event": event})


# --- survival ----------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("n", "p"), [(3, 0.1), (4, 0.0286), (5, 0.0079), (6, 0.0022), (8, 1.55e-4)])
def test_smallest_p_at_full_separation(n, p):
    """2/C(2n, n), by the formula and by the test itself."""
    time = np.arange(1, 2 * n + 1)
    found = survival.logrank_exact(time, np.ones(2 * n, bool), time <= n, RNG(0))
    assert found == pytest.approx(survival.smallest_p(n, n)) == pytest.approx(2 / comb(2 * n, n)) == pytest.approx(p, rel=0.02)


@pytest.mark.parametrize(("n", "m"), [(3, 5), (6, 4), (1, 7)])
def test_smallest_p_of_unequal_arms(n, m):
    """Only one subset of the size n is as far out: the other end belongs to subsets of the size m."""
    time = np.arange(1, n + m + 1)
    least = min(survival.logrank_exact(time, np.ones(n + m, bool), group, RNG(0)) for group in (time <= n, time > m))
    assert least == pytest.approx(survival.smallest_p(n, m)) == pytest.approx(1 / comb(n + m, n))


def test_the_exact_logrank_by_brute_force_with_lifelines():
    """|O − E| of lifelines' own table under every relabelling of 4 + 3 runs, with censoring and ties."""
    time, event = np.array([3, 5, 5, 8, 9, 9, 9]), np.array([1, 1, 1, 1, 0, 1, 0], bool)
    group = np.array([1, 1, 0, 1, 0, 0, 1], bool)

    def distance(labels):
        observed = expected = 0.0
        for t in np.unique(time[event]):
            risk = time >= t
            died = (time == t) & event
            observed += (died & labels).sum()
            expected += died.sum() * (risk & labels).sum() / risk.sum()
        return abs(observed - expected)

    labels = {tuple(order) for order in permutations(group)}
    reached = [distance(np.array(order)) >= distance(group) - 1e-9 for order in labels]
    assert survival.logrank_exact(time, event, group, RNG(0)) == pytest.approx(np.mean(reached))


def test_a_drawn_p_value_counts_the_observed_labelling():
    """Full separation of 30 and 30: none of the 20000 drawn reaches it, and p is 1/20001, not 0."""
    time = np.arange(60)
    assert survival.logrank_exact(time, np.ones(60, bool), time < 30, RNG(0)) == pytest.approx(1 / 20001)


def test_many_runs_are_drawn_and_agree_with_chi_square():
    """60 + 60 runs: the normal approximation of lifelines holds there."""
    rng = RNG(2)
    time = np.concatenate([rng.exponential(100, 60), rng.exponential(140, 60)])
    event, group = time < 200, np.arange(120) < 60
    time = np.minimum(time, 200)
    theirs = logrank_test(time[group], time[~group], event[group], event[~group]).p_value
    assert survival.logrank_exact(time, event, group, rng) == pytest.approx(theirs, abs=0.02)


def test_the_means_test_by_enumeration_and_by_scipy():
    """1, 2, 9 against 3, 4, 5: means 4 and 4, so every one of 20 labellings is as far apart. 1, 2, 3 against 4, 5, 9: full
    separation, 2/20. Unequal arms, both tails alike: 1 against 2, 3, 4 is as far out as 4 against 1, 2, 3."""
    first = np.array([True] * 3 + [False] * 3)
    assert survival.means_exact(np.array([1, 2, 9, 3, 4, 5]), first, RNG(0)) == 1
    assert survival.means_exact(np.array([1, 2, 3, 4, 5, 9]), first, RNG(0)) == pytest.approx(2 / 20)
    assert survival.means_exact(np.array([1, 2, 3, 4]), np.array([True, False, False, False]), RNG(0)) == pytest.approx(2 / 4)
    one, other = RNG(3).normal(0, 1, 6), RNG(4).normal(1, 1, 6)
    theirs = stats.permutation_test((one, other), lambda a, b, axis: a.mean(axis) - b.mean(axis), n_resamples=np.inf)
    ours = survival.means_exact(np.concatenate([one, other]), np.arange(12) < 6, RNG(0))
    assert ours == pytest.approx(theirs.pvalue)


def test_the_means_test_errs_towards_one_where_seeds_are_alike():
    """300 null pairs of arms of 4 whose seeds share most of their spread: it rejects at 0.1 in fewer than a tenth of them."""
    rng, arms = RNG(5), np.arange(8) < 4
    shared = rng.normal(0, 1, (300, 4))
    pairs = np.concatenate([shared + 0.3 * rng.normal(0, 1, (300, 4)), shared + 0.3 * rng.normal(0, 1, (300, 4))], axis=1)
    assert np.mean([survival.means_exact(values, arms, rng) <= 0.1 for values in pairs]) < 0.02


def test_holm_by_hand():
    """p = .01, .04, .03 of three: 3·.01 = .03; 2·.03 = .06; 1·.04, raised to .06. A missing one is no comparison."""
    assert survival.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert survival.holm([0.01, np.nan, 0.9])[[0, 2]] == pytest.approx([0.02, 0.9])
    assert survival.holm([0.5, 0.6]) == pytest.approx([1, 1])


def test_clopper_pearson_in_closed_form():
    """0 of n: upper 1 − (α/2)^(1/n); n of n: lower (α/2)^(1/n)."""
    none, all_ = survival.fraction(0, 5), survival.fraction(5, 5)
    assert (none.lower, none.upper) == pytest.approx((0, 1 - 0.025**0.2)) and all_.lower == pytest.approx(0.025**0.2)


def test_no_runs_have_no_share():
    assert np.isnan(survival.fraction(0, 0)).all()


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


# --- reward ------------------------------------------------------------------------------------------------------------


def test_iqm_by_hand():
    """Of eight, two go at each end: (2 + 3 + 4 + 5)/4 = 3.5. Of five, one: the middle three."""
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
