"""How much of a truncated weight is its cap: a weight that is the cap everywhere scales the loss and corrects nothing."""

from __future__ import annotations

import math

import torch

from algos.diagnostics.pairs import LogpPairs
from algos.ratios import at_level


def saturation(pairs: LogpPairs, level: str, cap: float) -> float:
    """Share of the tokens whose weight min(ρ, cap) is the cap, ρ at `level` of `ratios.LEVELS`; 0 without a token.

    Limits: 1 where every ratio is above the cap, as for a sampler that logs its probabilities from before the temperature. Raises
    ValueError on an unknown level or missing segments.
    """
    if not len(pairs):
        return 0.0
    l = torch.zeros(pairs.mask.shape, dtype=torch.float64)
    l[pairs.mask] = pairs.l
    at = at_level(l, pairs.mask, level, pairs.batch.segments).expand_as(l)[pairs.mask]
    return float((at >= math.log(cap)).double().mean())
