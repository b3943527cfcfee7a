"""Compare gradient estimators with no correction on the same batches: the variance, and the batch size from which they pay off.

The shared batches cancel much of the noise. The exact sequence weight w = Π π_θ/μ stands for the true gradient: E_μ[w·f] =
E_π[f] for a function f of one response. If the weights have a heavy tail, their mean is known to few digits.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from faultline.tools.gradient.estimate import draws, interval, pairs

EQUAL = 1e-6
"""Differences in variance or squared bias below this share of the uncorrected variance count as rounding of equal gradients."""


class Paired:
    """Compares gradients [K, parameters] of an estimator on K batches with those of no correction and of the exact weight."""

    def __init__(self, gradients: Tensor, none: Tensor, exact: Tensor, responses: int):
        self.responses = responses
        self.own, self.none, self.off, self.none_off = (
            (part.double() @ part.double().T).numpy() for part in (gradients, none, gradients - exact, none - exact)
        )

    def statistics(self, times: np.ndarray) -> dict[str, np.ndarray]:
        """Return "sd ratio", "bias" and "pays from", each [resamples]. Resample i contains batch k times[i, k] times.

        sd ratio: sd(method)/sd(none), where none is no correction. bias: |E method − E exact|/sd(none), with the sd of one batch.
        pays from: the batch size n in responses beyond which the method's bias² + sd²·responses/n is below that of none,
        n = responses·(sd²(method) − sd²(none)) / (bias²(none) − bias²(method)). It is 0 if the method is better in every batch,
        NaN if both are equal, and infinite if the method's bias is larger; a smaller sd then pays off in batches of up to n.
        """
        of_none = _variance(self.none, times)
        bias = pairs(self.off, times)
        cost, gain = _variance(self.own, times) - of_none, pairs(self.none_off, times) - bias
        cost, gain = (np.where(np.abs(part) < EQUAL * of_none, 0.0, part) for part in (cost, gain))
        with np.errstate(divide="ignore", invalid="ignore"):
            return {
                "sd ratio": np.sqrt(1 + cost / of_none),
                "bias": np.sqrt(np.maximum(bias, 0) / of_none),
                "pays from": np.where(gain < 0, np.inf, self.responses * np.maximum(cost, 0) / gain),  # 0/0 and NaN are NaN
            }

    def summary(self) -> dict[str, float]:
        """Return the `statistics` of the batches by name, and their bootstrap intervals (`estimate.interval`)."""
        count = len(self.own)
        out = {name: float(value[0]) for name, value in self.statistics(np.ones((1, count))).items()}
        for name, values in self.statistics(*draws((count,))).items():
            out |= interval(name, values)
        return out


def _variance(gram: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Variance of a batch's gradient, summed over parameters, per resample (row of `times`); NaN if it has only one batch."""
    return times @ np.diagonal(gram) / times.sum(1) - pairs(gram, times)
