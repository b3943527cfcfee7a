"""Methods against no correction on the same batches, whose noise they share: what a method costs, and from where it pays.

No truth is drawn. The exact sequence weight w = Π π_θ/μ stands for it: E_μ[w·f] = E_π[f] for an f of one response, with the
baseline, the scale and the number of tokens that μ's samples give. A mean over heavy weights is known to few digits.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from faultline.tools.gradient.estimate import draws, interval, pairs

EQUAL = 1e-6
"""Differences of squares below this part of sd²(none) are rounding: methods of equal gradients come from different sums."""


class Paired:
    """Inner products of a method's gradients [K, parameters], those of no correction and of the exact sequence weight, on the
    same K batches of `responses` each."""

    def __init__(self, gradients: Tensor, none: Tensor, exact: Tensor, responses: int):
        self.responses = responses
        self.own, self.none, self.off, self.none_off = (
            (part.double() @ part.double().T).numpy() for part in (gradients, none, gradients - exact, none - exact)
        )

    def statistics(self, times: np.ndarray) -> dict[str, np.ndarray]:
        """Statistics of resamples that hold batch k times[:, k] times; each [resamples].

        sd ratio: sd(method)/sd(none). bias: |E method − E exact|/sd(none), with the sd of one batch. pays from: the number of
        responses n from which on bias² + sd²·responses/n lies below that of no correction for every larger batch,
        n = responses·(sd²(method) − sd²(none)) / (bias²(none) − bias²(method)). 0: for every batch. Infinite: its bias is the
        larger one; with a smaller sd it is then below in batches of up to n. NaN: they are equal.
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
        """`statistics` of the data, and their intervals as <name> low and high: see `estimate.interval`."""
        count = len(self.own)
        out = {name: float(value[0]) for name, value in self.statistics(np.ones((1, count))).items()}
        for name, values in self.statistics(*draws((count,))).items():
            out |= interval(name, values)
        return out


def _variance(gram: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The variance of one batch's gradient, summed over parameters; NaN of a resample that is one batch alone."""
    return times @ np.diagonal(gram) / times.sum(1) - pairs(gram, times)
