"""95 % intervals of the mismatch of a dump, over resampled prompts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from faultline.tools.replay.family import FlatTokens

Interval = tuple[float, float]

STATISTICS: dict[str, Callable[..., np.ndarray]] = {
    "k1": lambda n, l, **_: -l / n,
    "k3": lambda n, l, excess, **_: np.maximum(excess - l, 0.0) / n,
    "mean_ratio": lambda n, excess, **_: 1 + excess / n,
    "ess_token": lambda n, excess, ratio_sq, **_: (n + excess) ** 2 / (n * ratio_sq),
    "ess_sequence": lambda responses, weight, weight_sq, **_: weight**2 / (responses * weight_sq),
}
"""Metric of the mismatch -> function that computes it from the sums of `MismatchSums`. `finish_mismatch` has the equations."""


class MismatchSums:
    """Sums per group of prompts, from which the metrics of `STATISTICS` follow for any resample of the groups.

    The sums over the n tokens of a group are Σl, Σ(ρ − 1) and Σρ², with ρ = π_old/μ and l = log ρ; |l| in ρ is bounded by
    `algos.ratios.excess_bound`. The sums over responses are Σw and Σw², with w = e^(S − max S) and S = Σl of a response.
    """

    def __init__(self, groups: int):
        self.groups, self.largest = groups, 0.0
        self.tokens = {name: np.zeros(groups) for name in ("n", "l", "excess", "ratio_sq")}
        self.sequences: list[np.ndarray] = []
        self.members: list[np.ndarray] = []

    def add(self, tokens: FlatTokens, group: np.ndarray) -> None:
        """Add one batch of responses. group [rows]: the group of each response, which the bootstrap resamples whole."""
        excess = np.expm1(np.clip(tokens.l, -tokens.bound, tokens.bound))
        terms = np.ones_like(excess), tokens.l, excess, (1 + excess) ** 2
        for sums, values in zip(self.tokens.values(), terms, strict=True):
            sums += np.bincount(group[tokens.row], values, self.groups)
        present = tokens.count > 0
        self.sequences.append(tokens.in_responses.sum(tokens.l)[present])
        self.members.append(group[present])
        self.largest = max(self.largest, float(np.abs(tokens.l).max(initial=0.0)))

    def intervals(self, draws: np.ndarray) -> dict[str, Interval]:
        """95 % interval of each metric over resamples. draws [resamples, groups]: how often each group is in a resample.

        A metric that some resample leaves undefined has no interval, such as an ESS of weights that all underflow.
        `largest_log_ratio` is the maximum of the dump, and no estimate. Both ends of its interval are that number.
        """
        log_weights, members = np.concatenate(self.sequences), np.concatenate(self.members)
        weight = np.exp(log_weights - log_weights.max())
        whole = {"responses": np.ones_like(weight), "weight": weight, "weight_sq": weight**2}
        sums = self.tokens | {name: np.bincount(members, values, self.groups) for name, values in whole.items()}
        drawn = {name: values[: draws.shape[1]] @ draws.T for name, values in sums.items()}
        intervals: dict[str, Interval] = {"largest_log_ratio": (self.largest, self.largest)}
        for name, statistic in STATISTICS.items():
            with np.errstate(invalid="ignore"):  # 0/0 where all weights underflow
                low, high = np.quantile(statistic(**drawn), [0.025, 0.975]).tolist()
            if low == low:
                intervals[name] = low, high
        return intervals
