"""Mismatch of tokens by the age of the weights that sampled them: the effect of stale weights in asynchronous rollouts."""

from __future__ import annotations

import numpy as np
import pandas as pd

from harness.dumps.schema import DumpedResponses

FARTHEST = 300.0
"""Bound in nats at which log ρ is clamped in ρ, ρ² and K3. Their sums are then finite, and K3 is never negative."""
SUMS = ("tokens", "l", "excess", "ratio", "ratio_sq")


class Versions:
    """Sums over tokens by the number of optimizer steps that their weights are behind the newest weights of the batch."""

    def __init__(self) -> None:
        self.known = True
        self.sums: dict[int, np.ndarray] = {}

    def add(self, responses: DumpedResponses) -> None:
        """Add one batch. If any batch lacks the versions of its weights, the table is empty."""
        if responses.version is None:
            self.known = False
            return
        version = responses.version[responses.mask]
        l = (responses.logp_old.astype(np.float64) - responses.logp_rollout)[responses.mask]
        bounded = np.clip(l, -FARTHEST, FARTHEST)
        terms = np.stack([np.ones_like(l), l, np.expm1(bounded) - bounded, np.exp(bounded), np.exp(2 * bounded)])
        behind, place = np.unique(version.max(initial=0) - version, return_inverse=True)
        for k, steps in enumerate(behind):
            self.sums[int(steps)] = self.sums.get(int(steps), 0.0) + terms[:, place == k].sum(1)

    def table(self) -> pd.DataFrame:
        """Table by age: behind (optimizer steps), tokens, K1 and K3 (nats per token), ESS. It is empty without versions."""
        columns = ("behind", "tokens", "k1", "k3", "ess_token")
        rows = []
        for behind, sums in sorted(self.sums.items() if self.known else ()):
            total = dict(zip(SUMS, sums, strict=True))
            n = total["tokens"]
            ess = total["ratio"] ** 2 / (n * total["ratio_sq"])
            rows.append((behind, int(n), (0.0 - total["l"]) / n, total["excess"] / n, ess))
        return pd.DataFrame(rows, columns=columns)
