"""The number of seeds that a comparison of two groups of runs needs, by the power of t tests. Exact tests need slightly more."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from math import comb

import numpy as np
from scipy.integrate import quad
from scipy.stats import chi2, nct, norm, t

LARGEST = 1000
"""Largest number of seeds per compared group that `seeds_needed` considers."""


def power_of_difference(n: int, spread: float, difference: float, alpha: float = 0.05) -> float:
    """Probability that a two-sided t test of n against n seeds at level `alpha` finds a true `difference` of mean rewards.

    spread: standard deviation of the reward between seeds. The test's T is noncentral t with ν = 2n − 2 and
    λ = difference / (spread·√(2/n)); power = P(|T| > t_{1−α/2, ν}).
    """
    degrees, shift = 2 * n - 2, difference / (spread * (2 / n) ** 0.5)
    critical = t.ppf(1 - alpha / 2, degrees)
    return float(nct.sf(critical, degrees, shift) + nct.sf(critical, degrees, -shift))


def power_of_equivalence(n: int, spread: float, margin: float, alpha: float = 0.05) -> float:
    """Probability that two one-sided t tests (TOST) of n against n seeds show two equal means to be equivalent within `margin`.

    With e = spread·√(2/n), s the pooled standard deviation and ν = 2n − 2, TOST rejects when
    |x̄ − ȳ| < margin − t_{1−α, ν}·s·√(2/n). x̄ − ȳ and s are independent, and ν·s²/spread² ~ χ²_ν:
        power = E_s max(0, 2Φ((margin − t·s·√(2/n)) / e) − 1)
    """
    degrees, error = 2 * n - 2, spread * (2 / n) ** 0.5
    critical = t.ppf(1 - alpha, degrees)
    widest = margin / (critical * error)  # s/spread beyond which nothing is shown
    least, most = ((chi2.ppf(share, degrees) / degrees) ** 0.5 for share in (1e-12, 1 - 1e-12))

    def at(share: float) -> float:
        density = 2 * degrees * share * chi2.pdf(degrees * share**2, degrees)
        return density * (2 * norm.cdf(margin / error - critical * share) - 1)

    return float(quad(at, least, min(most, widest))[0]) if widest > least else 0.0


def seeds_needed(power: Callable[[int], float], wanted: float, least: int = 2) -> int | None:
    """The smallest number n of seeds per compared group, from `least` to 1000, with power(n) ≥ `wanted`; None if none has."""
    if power(LARGEST) < wanted:
        return None
    return next(n for n in count(least) if power(n) >= wanted)


def least_seeds(alpha: float, sides: int) -> int:
    """The smallest n for which an exact test of n against n runs can have p ≤ alpha. Its least p is sides / C(2n, n)."""
    return next(n for n in count(2) if sides / comb(2 * n, n) <= alpha)


def spread_of(values: np.ndarray, confidence: float = 0.8) -> tuple[float, float]:
    """Standard deviation s of the values of n seeds, and its upper limit s·√((n−1)/χ²_{1−confidence, n−1}): 1.6·s for n = 5."""
    values = np.asarray(values, float)
    deviation = float(values.std(ddof=1))
    return deviation, deviation * float(((len(values) - 1) / chi2.ppf(1 - confidence, len(values) - 1)) ** 0.5)
