"""Tests whether the log ratio log π − log μ follows the advantages, as it does when the sampler's weights are an update old."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from algos.diagnostics.pairs import LogpPairs, Mean, clustered_mean
from algos.diagnostics.positions import bin_of


def drift(pairs: LogpPairs) -> dict[str, float]:
    """Correlation of a response's mean l = log π − log μ with its mean advantage, and its normal deviate, clustered over prompts.

    An update raises log π of responses with positive advantages, and of similar ones in the next batch. A trainer that is some
    updates ahead of the sampler therefore has a positive covariance. Rounding does not depend on the reward. But l may depend on
    the place, and wrong responses may be longer. So from each token's l the mean of its bin of places is subtracted, then that of
    its response's bin of lengths. Limits: NaN without advantages or where they do not vary; blind where the update did not
    generalise to this batch, or where lengths alone tell right responses from wrong ones. Four-bit
    weights without a fault gave up to 0.26.
    """
    if pairs.batch.advantages is None or not len(pairs):
        return {"drift/correlation": math.nan, "drift/z": math.nan}
    present = pairs.counts > 0
    n = pairs.counts[present]
    cluster = torch.zeros(len(pairs.mask), dtype=torch.long).index_copy(0, pairs.row, pairs.cluster)[present]
    advantage = pairs.by_response(pairs.batch.advantages[pairs.mask].double())[present] / n
    l = pairs.l
    for numbers in (pairs.place + 1, pairs.counts.long()[pairs.row]):
        l = l - _usual(l, bin_of(numbers))
    product = _product(pairs.by_response(l)[present] / n, advantage, cluster)
    return {"drift/correlation": product.mean, "drift/z": product.z(0.0)}


def _product(a: Tensor, b: Tensor, cluster: Tensor) -> Mean:
    """Pearson's r of `a` and `b`, a mean product of standardised values, with its error by `cluster`; NaN if one is constant."""
    a, b = a - a.mean(), b - b.mean()
    size = (a.square().mean() * b.square().mean()).sqrt()
    return clustered_mean(a * b / size, cluster) if size > 0 else Mean(math.nan, math.nan, 0)


def _usual(l: Tensor, stratum: Tensor) -> Tensor:
    """The mean of `l` [n] over all tokens of each token's stratum, [n]. stratum [n]: number of each token's bin."""
    total = torch.zeros(int(stratum.max()) + 1, dtype=torch.float64).index_add(0, stratum, l)
    return (total / torch.bincount(stratum).clamp(min=1))[stratum]
