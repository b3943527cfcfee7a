"""Rows that stand in a batch more often than sampling gives."""

from __future__ import annotations

import torch

from algos.diagnostics.pairs import LogpPairs


def duplicates(pairs: LogpPairs) -> dict[str, float]:
    """How many pairs of responses agree in every number of both columns, and how many the sampler's own odds give.

        expected ≤ Σ_i Π_t μ(x_t)·(N − 1)/2      over the N responses i

    since another response to the same prompt repeats response i with probability Π_t μ(x_t), and those to other prompts do not.
    repeated: share of responses that repeat an earlier one. found, expected: pairs. Limits: a policy without entropy repeats itself
    and is expected to; with `found` near `expected` nothing is wrong.
    """
    mask = pairs.mask
    present = mask.any(-1)
    mu, pi = (torch.where(mask, part.double(), 1.0)[present] for part in (pairs.batch.logp_rollout, pairs.batch.logp_old) if part is not None)
    n = int(present.sum())
    if n < 2:
        return {"duplicates/repeated": 0.0, "duplicates/found": 0.0, "duplicates/expected": 0.0}
    counts = torch.cat([mu, pi], -1).unique(dim=0, return_counts=True)[1].double()
    odds = pairs.by_response(pairs.mu)[present].clamp(max=0.0).exp()
    return {
        "duplicates/repeated": float((counts - 1).sum()) / n,
        "duplicates/found": float((counts * (counts - 1)).sum()) / 2,
        "duplicates/expected": float(odds.sum()) * (n - 1) / 2,
    }
