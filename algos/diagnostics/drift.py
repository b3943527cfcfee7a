"""Whether the log ratio follows the reward: weights that are an update old differ in the direction of the advantages."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from algos.diagnostics.pairs import LogpPairs, clustered_mean

STRATA = 20
"""Bins of log μ, of equally many tokens."""


def drift(pairs: LogpPairs) -> dict[str, float]:
    """Correlation of a response's mean l with its mean advantage, and its z clustered over prompts.

    An update raises log π of responses with positive advantages, and of those like them in the next batch. A trainer that is updates
    ahead of the sampler therefore has cov(l̄_i, A_i) > 0. Rounding knows no reward, but it does know how likely a token is, and so may
    the reward: the mean l of tokens with much the same log μ is taken off first, in `STRATA` equal bins. Limits: NaN without
    advantages or where they do not vary; blind where the update did not generalise to this batch.
    """
    nothing = {"drift/correlation": math.nan, "drift/z": math.nan}
    if pairs.batch.advantages is None or not len(pairs):
        return nothing
    present = pairs.counts > 0
    n = pairs.counts[present]
    l = pairs.by_response(pairs.l - _usual(pairs))[present] / n
    a = pairs.by_response(pairs.batch.advantages[pairs.mask].double())[present] / n
    l, a = l - l.mean(), a - a.mean()
    size = (l.square().mean() * a.square().mean()).sqrt()
    if not size > 0:
        return nothing
    first = torch.zeros(len(pairs.mask), dtype=torch.long).index_copy(0, pairs.row, pairs.cluster)[present]
    product = clustered_mean(l * a / size, first)
    return {"drift/correlation": product.mean, "drift/z": product.z(0.0)}


def _usual(pairs: LogpPairs) -> Tensor:
    """The mean of l over the tokens in the same bin of log μ, [n]."""
    rank = pairs.mu.argsort().argsort()
    stratum = rank * STRATA // len(rank)
    total = torch.zeros(STRATA, dtype=torch.float64).index_add(0, stratum, pairs.l)
    return (total / torch.bincount(stratum, minlength=STRATA).clamp(min=1))[stratum]
