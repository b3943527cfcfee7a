"""Claims of no difference: tests against a margin.

x and y are the rewards of two arms, one value a seed, and δ = E x − E y. Both tests of a margin m > 0 ask whether one
arm, shifted by m, still lies beyond the other:
    non-inferiority   H0: δ ≤ −m   is refuted when x + m lies above y
    equivalence       H0: |δ| ≥ m  is refuted when x + m lies above y and x − m below it (two one-sided tests, TOST)
Each side is an exact permutation of runs over both arms, so p ≥ 1/C(n + k, n). It is exact if the arms differ by a shift alone.
A rare collapse is no shift: it moves the mean and is not in most small samples, so a claim needs the share of collapses that the
seeds leave possible beside it. Source of TOST: Schuirmann, J. Pharmacokinet.
Biopharm. 15:657, 1987.
"""

from __future__ import annotations

import numpy as np

from analysis.statistics.survival import permutation_sums


def non_inferior_p(x: np.ndarray, y: np.ndarray, margin: float, rng: np.random.Generator) -> float:
    """One-sided exact p of H0: mean x ≤ mean y − margin. Small: x is worse by less than the margin, or better."""
    x, y = np.asarray(x, float) + margin, np.asarray(y, float)
    values = np.concatenate([x, y])
    observed, sums, drawn = permutation_sums(values - values.mean(), np.arange(len(values)) < len(x), rng)
    return float((drawn + (sums >= observed - 1e-9).sum()) / (drawn + len(sums)))


def equivalent_p(x: np.ndarray, y: np.ndarray, margin: float, rng: np.random.Generator) -> float:
    """Exact p of H0: |mean x − mean y| ≥ margin, the larger of the two one-sided ones."""
    return max(non_inferior_p(x, y, margin, rng), non_inferior_p(y, x, margin, rng))
