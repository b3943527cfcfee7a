"""Each test against hand arithmetic, an enumeration, or another package on the same data."""

from itertools import permutations
from math import comb

import numpy as np
import pytest
from lifelines.statistics import logrank_test
from scipy import stats

from analysis.statistics.tests import (
    difference_p,
    equivalent_p,
    fraction,
    holm,
    holm_of_planned,
    logrank_p,
    non_inferior_p,
    smallest_p,
)

RNG = np.random.default_rng


@pytest.mark.parametrize(("n", "p"), [(3, 0.1), (4, 0.0286), (5, 0.0079), (6, 0.0022), (8, 1.55e-4)])
def test_smallest_p_at_full_separation(n, p):
    """2/C(2n, n), by the formula and by the test itself."""
    time = np.arange(1, 2 * n + 1)
    found = logrank_p(time, np.ones(2 * n, bool), time <= n, RNG(0))
    assert found == pytest.approx(smallest_p(n, n)) == pytest.approx(2 / comb(2 * n, n)) == pytest.approx(p, rel=0.02)


@pytest.mark.parametrize(("n", "m"), [(3, 5), (6, 4), (1, 7)])
def test_smallest_p_of_unequal_arms(n, m):
    """Only one subset of the size n is as far out: the other end belongs to subsets of the size m."""
    time = np.arange(1, n + m + 1)
    least = min(logrank_p(time, np.ones(n + m, bool), group, RNG(0)) for group in (time <= n, time > m))
    assert least == pytest.approx(smallest_p(n, m)) == pytest.approx(1 / comb(n + m, n))


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
    assert logrank_p(time, event, group, RNG(0)) == pytest.approx(np.mean(reached))


def test_a_drawn_p_value_counts_the_observed_labelling():
    """Full separation of 30 and 30: none of the 20000 drawn reaches it, and p is 1/20001, not 0."""
    time = np.arange(60)
    assert logrank_p(time, np.ones(60, bool), time < 30, RNG(0)) == pytest.approx(1 / 20001)


def test_many_runs_are_drawn_and_agree_with_chi_square():
    """60 + 60 runs: the normal approximation of lifelines holds there."""
    rng = RNG(2)
    time = np.concatenate([rng.exponential(100, 60), rng.exponential(140, 60)])
    event, group = time < 200, np.arange(120) < 60
    time = np.minimum(time, 200)
    theirs = logrank_test(time[group], time[~group], event[group], event[~group]).p_value
    assert logrank_p(time, event, group, rng) == pytest.approx(theirs, abs=0.02)


def test_the_difference_by_enumeration_and_by_scipy():
    """1, 2, 9 against 3, 4, 5: means 4 and 4, so every one of 20 labellings is as far apart. 1, 2, 3 against 4, 5, 9: full
    separation, 2/20. Unequal arms, both tails alike: 1 against 2, 3, 4 is as far out as 4 against 1, 2, 3."""
    assert difference_p(np.array([1, 2, 9]), np.array([3, 4, 5])) == 1
    assert difference_p(np.array([1, 2, 3]), np.array([4, 5, 9])) == pytest.approx(2 / 20)
    assert difference_p(np.array([1]), np.array([2, 3, 4])) == pytest.approx(2 / 4)
    one, other = RNG(3).normal(0, 1, 6), RNG(4).normal(1, 1, 6)
    theirs = stats.permutation_test((one, other), lambda a, b, axis: a.mean(axis) - b.mean(axis), n_resamples=np.inf)
    assert difference_p(one, other) == pytest.approx(theirs.pvalue)


def test_the_difference_errs_towards_one_where_seeds_are_alike():
    """300 null pairs of arms of 4 whose seeds share most of their spread: it rejects at 0.1 in fewer than a tenth of them."""
    rng = RNG(5)
    shared = rng.normal(0, 1, (300, 4))
    arms = [shared + 0.3 * rng.normal(0, 1, (300, 4)) for _ in range(2)]
    assert np.mean([difference_p(one, other) <= 0.1 for one, other in zip(*arms, strict=True)]) < 0.02


def test_sign_flips_by_hand_and_by_scipy():
    """Differences 1, 2, 3: of eight patterns of signs only +++ and −−− reach |6|, only +++ reaches 6. Differences 1, −2, 3 sum
    to 2: of the sums ±6, ±4, ±2 and 0 twice all but the zeros reach it, 6 of 8."""
    zeros = np.zeros(3)
    assert difference_p(np.array([1, 2, 3]), zeros, paired=True) == 2 / 8
    assert non_inferior_p(np.array([1, 2, 3]), zeros, 0, paired=True) == 1 / 8
    assert difference_p(np.array([1, -2, 3]), zeros, paired=True) == 6 / 8
    one, other = RNG(3).normal(0, 1, 8), RNG(4).normal(1, 1, 8)
    theirs = stats.permutation_test(
        (one, other), lambda a, b, axis: (a - b).mean(axis), permutation_type="samples", n_resamples=np.inf
    )
    assert difference_p(one, other, paired=True) == pytest.approx(theirs.pvalue)


def test_pairs_find_what_their_spread_hides():
    """Eight seeds that differ by 1 each, and an arm that adds 0.1 to every one: unpaired nothing is seen, paired 2/2^8."""
    seeds = np.arange(8.0)
    assert difference_p(seeds + 0.1, seeds) > 0.9
    assert difference_p(seeds + 0.1, seeds, paired=True) == 2 / 2**8
    assert equivalent_p(seeds + 0.1, seeds, 0.2, paired=True) == 1 / 2**8 < 0.4 < equivalent_p(seeds + 0.1, seeds, 0.2)


def test_many_pairs_are_drawn():
    """36 equal differences: a pattern of equal signs has the chance 2^-35, so none is drawn and p is 1/20001. Of normal
    differences the drawn p lies near that of the t test."""
    assert difference_p(np.ones(36), np.zeros(36), paired=True) == pytest.approx(1 / 20001)
    differences = RNG(6).normal(0.25, 1, 36)
    assert difference_p(differences, np.zeros(36), paired=True) == pytest.approx(
        stats.ttest_1samp(differences, 0).pvalue, abs=0.02
    )


def test_holm_by_hand():
    """p = .01, .04, .03 of three: 3·.01 = .03; 2·.03 = .06; 1·.04, raised to .06. A missing one is no comparison."""
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.01, np.nan, 0.9])[[0, 2]] == pytest.approx([0.02, 0.9])
    assert holm([0.5, 0.6]) == pytest.approx([1, 1])


def test_a_comparison_without_runs_counts_in_its_family():
    """Three planned, two with runs: the least of .01 and .04 is taken three times, the other twice."""
    assert holm_of_planned([0.01, 0.04], 3) == pytest.approx([0.03, 0.08])


def test_clopper_pearson_in_closed_form():
    """0 of n: upper 1 − (α/2)^(1/n); n of n: lower (α/2)^(1/n)."""
    none, all_ = fraction(0, 5), fraction(5, 5)
    assert (none.lower, none.upper) == pytest.approx((0, 1 - 0.025**0.2)) and all_.lower == pytest.approx(0.025**0.2)


def test_no_runs_have_no_share():
    assert np.isnan(fraction(0, 0)).all()


def test_non_inferiority_by_hand():
    """x + 0.1 = .6, .7 lies above y = .5, .4: only 1 of the C(4, 2) = 6 subsets has a sum as large. With margin 0 it is
    .5, .6 against .5, .4: sums of two of {.5, .6, .5, .4} of at least 1.1 are .5 + .6, twice."""
    x, y = np.array([0.5, 0.6]), np.array([0.5, 0.4])
    assert non_inferior_p(x, y, 0.1) == pytest.approx(1 / 6)
    assert non_inferior_p(x, y, 0.0) == pytest.approx(2 / 6)


def test_equivalence_needs_both_sides():
    """Five against five, equal but for 0.01: both shifts by 0.1 separate them fully, p = 1/C(10, 5)."""
    y = np.array([0.80, 0.81, 0.82, 0.83, 0.84])
    assert equivalent_p(y + 0.01, y, 0.1) == pytest.approx(1 / comb(10, 5))
    assert equivalent_p(y + 0.1, y, 0.1) > 0.4
    assert equivalent_p(y - 0.3, y, 0.1) > 0.9


def test_a_rare_collapse_is_no_shift():
    """The test of a mean errs where one run in five loses half: a claim at 5 % is made three times as often as it may be, so
    the table has the collapses that the seeds leave possible beside it."""
    rng = np.random.default_rng(0)
    claims = 0
    for _ in range(200):
        x, y = rng.normal(0.8, 0.02, 5) - 0.5 * (rng.random(5) < 0.2), rng.normal(0.8, 0.02, 5)
        claims += non_inferior_p(x, y, 0.1, rng=rng) <= 0.05  # the true difference is the margin
    assert claims / 200 > 0.15
