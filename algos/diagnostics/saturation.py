"""Share of truncated importance weights at their cap: if all equal the cap, they only scale the loss and correct nothing."""

from __future__ import annotations

import math

import torch

from algos.diagnostics.pairs import LogpPairs
from algos.ratios import at_level


def saturation(pairs: LogpPairs, level: str, cap: float) -> float:
    """Share of tokens whose weight min(ρ, cap) equals the cap, with ρ = π/μ per token or at another level; 0 without a token.

    level: one of `ratios.LEVELS`. Raises ValueError on an unknown level or missing segments.
    """
    if not len(pairs):
        return 0.0
    l = torch.zeros(pairs.mask.shape, dtype=torch.float64)
    l[pairs.mask] = pairs.l
    at = at_level(l, pairs.mask, level, pairs.batch.segments).expand_as(l)[pairs.mask]
    return float((at >= math.log(cap)).double().mean())
