"""Cosine, norm ratio, bias and variance of a gradient that is known only through samples, with bootstrap intervals.

g_1 … g_K are an estimator's gradients of K independent batches of the same prompts. r_1 … r_J are those of a reference, whose
mean is taken as true. Products of means are averaged over pairs of different batches: E[g_k·g_l] = |E g|² only for k ≠ l.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

RESAMPLES, TAIL = 1000, 0.025


class Grams:
    """Statistics of gradients [K, parameters] against a reference [J, parameters] taken as true, from fp64 inner products."""

    def __init__(self, gradients: Tensor, reference: Tensor):
        g, r = gradients.double(), reference.double()
        self.gg, self.gr, self.rr = (part.numpy() for part in (g @ g.T, g @ r.T, r @ r.T))

    def statistics(self, times: np.ndarray, reference_times: np.ndarray) -> dict[str, np.ndarray]:
        """Return cosine, norm ratio, bias, sd and rmse by name, each [resamples]. Resample i holds batch k times[i, k] times.

        times, reference_times: [resamples, batches]. bias and sd are divided by the length of the mean reference gradient.
        sd is for one batch; rmse² = bias² + sd².
        A squared length that noise makes negative counts as 0; a ratio to a reference of such a length is NaN.
        """
        gg, rr = pairs(self.gg, times), pairs(self.rr, reference_times)
        gr = ((times @ self.gr) * reference_times).sum(1) / (times.sum(1) * reference_times.sum(1))
        rr = np.where(rr > 0, rr, np.nan)
        bias = np.maximum(gg - 2 * gr + rr, 0) / rr
        variance = np.maximum(times @ np.diagonal(self.gg) / times.sum(1) - gg, 0) / rr
        return {
            "cosine": gr / np.sqrt(np.where(gg > 0, gg, np.nan) * rr),
            "norm ratio": np.sqrt(np.maximum(gg, 0) / rr),
            "bias": np.sqrt(bias),
            "sd": np.sqrt(variance),
            "rmse": np.sqrt(bias + variance),
        }

    def summary(self) -> dict[str, float]:
        """Return the `statistics` of the gradients, and their bootstrap intervals over resamples of the batches (`interval`)."""
        counts = self.gr.shape
        out = {name: float(value[0]) for name, value in self.statistics(*(np.ones((1, n)) for n in counts)).items()}
        for name, values in self.statistics(*draws(counts)).items():
            out |= interval(name, values)
        return out


def draws(counts: tuple[int, ...]) -> list[np.ndarray]:
    """How often each bootstrap resample has each of n batches: [RESAMPLES, n] for each n in `counts`; the same at every call."""
    rng = np.random.default_rng(0)
    return [rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES).astype(np.float64) for n in counts]


def interval(name: str, values: np.ndarray) -> dict[str, float]:
    """95 % bootstrap interval of a statistic as a dict, `<name> low` and `<name> high`. values: the statistic by resample.

    Both are NaN if more than 2.5 % of the values are: with two or three batches a resample often holds only one batch.
    """
    known = values[~np.isnan(values)]
    enough = len(known) >= (1 - TAIL) * RESAMPLES
    if not enough:
        low = high = np.nan
    elif np.isinf(known).any():  # between infinite values there is no line
        low, high = np.quantile(known, [TAIL, 1 - TAIL], method="inverted_cdf")
    else:
        low, high = np.quantile(known, [TAIL, 1 - TAIL])
    return {f"{name} low": float(low), f"{name} high": float(high)}


def drowned(reference: Tensor) -> bool:
    """Whether a gradient is lost in noise: its squared length, estimated from its batches [J, parameters], is 0 or below."""
    r = reference.double()
    return bool(pairs((r @ r.T).numpy(), np.ones((1, len(r))))[0] <= 0)


def pairs(gram: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Mean of gram[k, l] over k ≠ l, per resample. times[i, k]: how often resample i has batch k. NaN for a single batch."""
    total = ((times @ gram) * times).sum(1) - times**2 @ np.diagonal(gram)
    pairs = times.sum(1) ** 2 - (times**2).sum(1)
    return total / np.where(pairs > 0, pairs, np.nan)
