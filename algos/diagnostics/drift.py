"""Tests whether the log ratio log π − log μ follows the advantages, as it does when the sampler's weights are an update old."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from algos.diagnostics.pairs import LogpPairs, Mean, clustered_mean

STRATA = 20
"""Number of bins of log μ with equally many tokens each. From a token's log π − log μ the mean of its bin is subtracted."""


def drift(pairs: LogpPairs) -> dict[str, float]:
    """Correlation of a response's mean l = log π − log μ with its mean advantage, and its normal deviate, clustered over prompts.

    An update raises log π of responses with positive advantages, and of similar ones in the next batch. A trainer that is some
    updates ahead of the sampler therefore has a positive covariance. Rounding does not depend on the reward, but both may depend
    on how likely a token is. So `correlation` and `z` first subtract the mean l of tokens with similar log μ, in `STRATA` equal
    bins; `plain` and `plain_z` do not. An update that sharpens the policy shows only in `plain`, where four-bit weights may show
    too. Limits: NaN without advantages or where they do not vary; blind where the update did not generalise to this batch.
    """
    found = {"drift/correlation": math.nan, "drift/z": math.nan, "drift/plain": math.nan, "drift/plain_z": math.nan}
    if pairs.batch.advantages is None or not len(pairs):
        return found
    present = pairs.counts > 0
    n = pairs.counts[present]
    cluster = torch.zeros(len(pairs.mask), dtype=torch.long).index_copy(0, pairs.row, pairs.cluster)[present]
    advantage = pairs.by_response(pairs.batch.advantages[pairs.mask].double())[present] / n
    for name, l in (("correlation", pairs.l - _usual(pairs)), ("plain", pairs.l)):
        product = _product(pairs.by_response(l)[present] / n, advantage, cluster)
        found |= {f"drift/{name}": product.mean, "drift/z" if name == "correlation" else "drift/plain_z": product.z(0.0)}
    return found


def _product(a: Tensor, b: Tensor, cluster: Tensor) -> Mean:
    """Pearson's r of `a` and `b`, a mean product of standardised values, with its error by `cluster`; NaN if one is constant."""
    a, b = a - a.mean(), b - b.mean()
    size = (a.square().mean() * b.square().mean()).sqrt()
    return clustered_mean(a * b / size, cluster) if size > 0 else Mean(math.nan, math.nan, 0)


def _usual(pairs: LogpPairs) -> Tensor:
    """The mean log ratio of all tokens in each token's bin of log μ, [n]; the `STRATA` bins hold equally many tokens."""
    rank = pairs.mu.argsort().argsort()
    stratum = rank * STRATA // len(rank)
    total = torch.zeros(STRATA, dtype=torch.float64).index_add(0, stratum, pairs.l)
    return (total / torch.bincount(stratum, minlength=STRATA).clamp(min=1))[stratum]
