"""Tests against a margin, and the seeds that a claim needs."""

from math import comb

import numpy as np
import pytest

from analysis.power import plan
from analysis.statistics.equivalence import equivalent_p, non_inferior_p
from analysis.statistics.planning import least_seeds, power_of_difference, power_of_equivalence, seeds_needed, spread_of
from faultline.cli import main
from harness.errors import UserError
from tests.analysis.synthetic import study

RNG = np.random.default_rng(0)


def test_non_inferiority_by_hand():
    """x + 0.1 = .6, .7 lies above y = .5, .4: only 1 of the C(4, 2) = 6 subsets has a sum as large. With margin 0 it is
    .5, .6 against .5, .4: sums of two of {.5, .6, .5, .4} of at least 1.1 are .5 + .6, twice."""
    x, y = np.array([0.5, 0.6]), np.array([0.5, 0.4])
    assert non_inferior_p(x, y, 0.1, RNG) == pytest.approx(1 / 6)
    assert non_inferior_p(x, y, 0.0, RNG) == pytest.approx(2 / 6)


def test_equivalence_needs_both_sides():
    """Five against five, equal but for 0.01: both shifts by 0.1 separate them fully, p = 1/C(10, 5)."""
    y = np.array([0.80, 0.81, 0.82, 0.83, 0.84])
    assert equivalent_p(y + 0.01, y, 0.1, RNG) == pytest.approx(1 / comb(10, 5))
    assert equivalent_p(y + 0.1, y, 0.1, RNG) > 0.4
    assert equivalent_p(y - 0.3, y, 0.1, RNG) > 0.9


def test_power_of_a_difference_against_published_values():
    """Cohen (1988), table 2.3.5, two-sided 5 %: d = 0.5 with 64 an arm has power 0.80; d = 0.8 with 26 has 0.81 by G*Power."""
    assert power_of_difference(64, 1.0, 0.5) == pytest.approx(0.801, abs=1e-3)
    assert power_of_difference(26, 1.0, 0.8) == pytest.approx(0.807, abs=1e-3)
    assert power_of_difference(10, 1.0, 0.0) == pytest.approx(0.05, abs=1e-9)


def test_power_of_equivalence_against_simulation():
    """100,000 pairs of arms of eight seeds, each tested by TOST."""
    n, spread, margin = 8, 0.05, 0.07
    rng = np.random.default_rng(1)
    x, y = rng.normal(0, spread, (2, 100_000, n))
    pooled = ((x.var(1, ddof=1) + y.var(1, ddof=1)) / 2) ** 0.5
    shown = np.abs(x.mean(1) - y.mean(1)) < margin - 1.7613101 * pooled * (2 / n) ** 0.5  # t of 14 degrees at 0.95
    assert power_of_equivalence(n, spread, margin) == pytest.approx(shown.mean(), abs=0.006)


def test_seeds_for_a_claim():
    assert seeds_needed(lambda n: power_of_difference(n, 1.0, 0.5), 0.8) == 64
    assert seeds_needed(lambda n: power_of_difference(n, 1.0, 1e-4), 0.8) is None
    needed = seeds_needed(lambda n: power_of_equivalence(n, 0.05, 0.05), 0.8)
    assert power_of_equivalence(needed, 0.05, 0.05) >= 0.8 > power_of_equivalence(needed - 1, 0.05, 0.05)


def test_spread_and_its_limit():
    """Standard deviation of 1, 2, 3, 4, 5: √2.5. χ²_4 has its 20 % quantile at 1.6488."""
    deviation, limit = spread_of(np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert deviation == pytest.approx(2.5**0.5)
    assert limit == pytest.approx(2.5**0.5 * (4 / 1.6487764) ** 0.5, rel=1e-6)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    return study(tmp_path_factory.mktemp("sweeps") / "study")


def test_the_plan_takes_the_control_alone(sweep, capsys):
    table = plan(sweep, difference=0.1, margin=0.05, power=0.8)
    assert list(table.columns) == [
        "control", "seeds", "mean", "spread", "upper limit", "difference of 0.1", "equivalence within 0.05"
    ]  # fmt: skip
    assert len(table) and all(name.startswith("fp32") for name in table.control)
    row = table.iloc[0]
    needs = [seeds_needed(lambda n, s=s: power_of_difference(n, s, 0.1), 0.8, 4) for s in (row["spread"], row["upper limit"])]
    assert row["difference of 0.1"] == f"{needs[0]} to {needs[1]}"
    main(["power", str(sweep), "--difference", "0.2"])
    assert "difference of 0.2" in capsys.readouterr().out


def test_a_plan_has_the_seeds_that_an_exact_test_needs(sweep):
    """Two-sided 2/C(8, 4) = 0.029 and one-sided 1/C(6, 3) = 0.05 are the first within 5 %; of four comparisons 1.25 % each:
    2/C(10, 5) = 0.008 and 1/C(10, 5) = 0.004, after 0.029 and 0.014."""
    assert [least_seeds(0.05, 2), least_seeds(0.05, 1), least_seeds(0.0125, 2), least_seeds(0.0125, 1)] == [4, 3, 5, 5]
    huge = plan(sweep, difference=0.9, margin=0.9, power=0.8).iloc[0]
    assert huge["difference of 0.9"].startswith("4 ") and huge["equivalence within 0.9"].startswith("3 ")
    four = plan(sweep, difference=0.9, margin=0.9, power=0.8, comparisons=4).iloc[0]
    assert four["difference of 0.9"].startswith("5 ") and four["equivalence within 0.9"].startswith("5 ")


def test_a_rare_collapse_is_no_shift():
    """The test of a mean errs where one run in five loses half: a claim at 5 % is made three times as often as it may be, so
    the table has the collapses that the seeds leave possible beside it."""
    rng = np.random.default_rng(0)
    claims = 0
    for _ in range(200):
        x, y = rng.normal(0.8, 0.02, 5) - 0.5 * (rng.random(5) < 0.2), rng.normal(0.8, 0.02, 5)
        claims += non_inferior_p(x, y, 0.1, rng) <= 0.05  # the true difference is the margin
    assert claims / 200 > 0.15


def test_a_plan_that_cannot_be_made(sweep):
    with pytest.raises(UserError, match=r"--margin 0: give a number above 0 and at most 1"):
        plan(sweep, difference=0.1, margin=0, power=0.8)
    with pytest.raises(UserError, match="no control has two ended runs"):
        plan(sweep, difference=0.1, margin=0.05, power=0.8, seeds=[0])
