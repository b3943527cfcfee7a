"""Rules that choose a correction from measurements of a run without correction, and the reward that a rule loses. No torch.

The study of the verdict (docs/decision.md) tunes and scores such rules, and `faultline replay` follows the one that it supports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd

ARMS = ("none", "token", "sequence", "mask", "geometric")
"""Corrections to choose from under a mismatch. token and sequence truncate weights at 2, mask drops sequences of ratio above 2,
geometric drops those whose geometric mean ratio leaves 0.9 to 1.11, and tokens of ratio above 2."""


class Seen(NamedTuple):
    """The measurements of a run without correction from which a rule chooses the correction for runs of its setting.

    k3: in nats per token. persistence: of the log ratios over 20 weight syncs, 0 if unmeasured. tokens: mean per response.
    verdict: the correction that `faultline replay` proposes for the run.
    """

    k3: float
    persistence: float
    tokens: float
    verdict: str


Rule = Callable[[Seen], str]
"""A rule for choosing a correction: measurements of an uncorrected run -> the correction, one of ARMS."""


@dataclass(frozen=True)
class Cutoffs:
    """A rule for choosing a correction by three cut-offs (version 2 of the verdict), for one policy that is served.

    The rule chooses no correction for a run below `k3` or below `persistence`. Otherwise it chooses `short` for a mean response
    of at most `tokens` tokens, and `long` for a longer one.
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


def regret(ends: pd.DataFrame, chosen: Mapping[int, str]) -> float:
    """The regret of a rule under one mismatch: reward lost against the best correction, which is chosen on other seeds.

    ends: last rewards [seeds, corrections]. chosen: seed -> the rule's correction. For each choice S of half of the seeds,
    rounded down,
        best(S) = argmax over ARMS of the mean of S
        regret(S) = mean over the other seeds s of ends[s, best(S)] − ends[s, chosen(s)]
    and the regret is the mean over all S. If the best arm were chosen and scored on the same seeds, its noise would count as
    regret. A rule that is as good as the best correction may have a negative regret.
    """
    found = []
    for some in combinations(ends.index, len(ends) // 2):
        best = ends.loc[list(some), list(ARMS)].mean().idxmax()
        found.append(np.mean([ends.at[s, best] - ends.at[s, chosen[s]] for s in ends.index if s not in some]))
    return float(np.mean(found))
