"""Compare gradient methods with no correction on the same batches: their variance, and the batch size from which they pay.

The shared batches cancel much of the noise. The exact sequence weight w = Π π_θ/μ stands for the true gradient: E_μ[w·f] =
E_π[f] for an f of one response. With heavy weights, a mean is known to few digits.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from faultline.tools.gradient.estimate import draws, interval, pairs

EQUAL = 1e-6
"""Share of sd²(none) below which a difference of squares counts as rounding. Equal gradients may come from different sums."""


class Paired:
    """Inner products of the gradients [K, parameters] of a method, no correction and the exact sequence weight, on K batches."""

    def __init__(self, gradients: Tensor, none: Tensor, exact: Tensor, responses: int):
        self.responses = responses
        self.own, self.none, self.off, self.none_off = (
            (part.double() @ part.double().T).numpy() for part in (gradients, none, gradients - exact, none - exact)
        )

    def statistics(self, times: np.ndarray) -> dict[str, np.ndarray]:
        """Return sd ratio, bias and pays from by name, each [resamples]. Resample i holds batch k times[i, k] times.

        sd ratio: sd(method)/sd(none). bias: |E method − E exact|/sd(none), with the sd of one batch. pays from: the number of
        responses n beyond which bias² + sd²·responses/n is below that of no correction, n = responses·(sd²(method) −
        sd²(none)) / (bias²(none) − bias²(method)). It is 0 if the method pays in every batch. It is infinite if the method's
        bias is larger; with a smaller sd, the method then pays in batches of up to n. It is NaN if the two are equal.
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
        """Return the statistics of the data, with their bootstrap intervals (`estimate.interval`)."""
        count = len(self.own)
        out = {name: float(value[0]) for name, value in self.statistics(np.ones((1, count))).items()}
        for name, values in self.statistics(*draws((count,))).items():
            out |= interval(name, values)
        return out


def _variance(gram: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Variance of one batch's gradient, summed over parameters; NaN for a resample that holds only one batch."""
    return times @ np.diagonal(gram) / times.sum(1) - pairs(gram, times)
