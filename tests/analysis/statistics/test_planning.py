"""The seeds that a claim needs."""

import numpy as np
import pytest

from analysis.statistics.planning import power_of_difference, power_of_equivalence, seeds_needed, spread_of


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
