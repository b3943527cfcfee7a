"""Rules that choose a correction from measurements of an uncorrected run, and the reward that a rule's choice loses. No torch.

docs/decision.md describes the study that tunes and scores such rules. `faultline replay` follows the rule that it supports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd

ARMS = ("none", "token", "sequence", "mask", "geometric")
"""Corrections to choose from under a mismatch. token and sequence truncate the weights of tokens and sequences at 2. mask drops
sequences with a ratio above 2. geometric drops sequences whose geometric mean ratio leaves 0.9 to 1.11, and tokens with a ratio
above 2."""


class Seen(NamedTuple):
    """Measurements of a run without a correction, from which a rule chooses the correction for runs with the same config.

    k3: in nats per token. persistence: correlation of the log ratios over 20 weight syncs, 0 if unmeasured. tokens: mean number
    per response. verdict: the correction that `faultline replay` proposes for the run.
    """

    k3: float
    persistence: float
    tokens: float
    verdict: str


Rule = Callable[[Seen], str]
"""A rule for choosing a correction. It takes measurements of an uncorrected run, and returns the correction, one of ARMS."""


@dataclass(frozen=True)
class Cutoffs:
    """A rule for choosing a correction by three cut-offs, from the measurements `Seen` of an uncorrected run.

    It chooses no correction if the run's K3 is below `k3`, or if the correlation of its log ratios over 20 weight syncs is below
    `persistence`. Otherwise it chooses the correction `short` if the mean response has at most `tokens` tokens, else `long`.
    """

    k3: float = 0.0
    persistence: float = -1.0
    tokens: int = 10
    short: str = "sequence"
    long: str = "sequence"

    def __call__(self, seen: Seen) -> str:
        if seen.k3 < self.k3 or seen.persistence < self.persistence:
            return "none"
        return self.short if seen.tokens <= self.tokens else self.long


def constant(arm: str) -> Rule:
    return lambda seen: arm


DECIMALS = 9
"""Means of rewards that agree to so many decimals are equal. Rewards are multiples of more than 1e-4; the rest is rounding."""


def regret(ends: pd.DataFrame, chosen: Mapping[int, str]) -> float:
    """The regret of a rule under one mismatch: reward lost against the best correction, which is chosen on other seeds.

    ends: last rewards [seeds, corrections]. chosen: the rule's correction, by seed. For each choice S of half of the seeds,
    rounded down,
        best(S) = the correction in ARMS with the largest mean of `ends` over the seeds in S
        regret(S) = mean over the other seeds s of ends[s, best(S)] − ends[s, chosen(s)]
    and the regret is the mean over all S. Of corrections with equal means the first in ARMS is the best. If the best correction
    were chosen and scored on the same seeds, its luck there would count as regret. A rule that is as good as the best correction
    may have a negative regret.
    """
    found = []
    for some in combinations(ends.index, len(ends) // 2):
        best = ends.loc[list(some), list(ARMS)].mean().round(DECIMALS).idxmax()
        found.append(np.mean([ends.at[s, best] - ends.at[s, chosen[s]] for s in ends.index if s not in some]))
    return float(np.mean(found))
