"""Heaviness of the tail of importance weights: the shape k̂ of a generalised Pareto distribution fitted to the largest ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor

SMALLEST_TAIL = 5
"""Minimum number of weights in the tail for an estimate of its shape, as in PSIS (Pareto-smoothed importance sampling)."""


@torch.no_grad()
def pareto_k(log_weights: Tensor) -> Tensor:
    """The Pareto shape k̂ of the largest weights w = exp(`log_weights`) ([N], nats, −∞ for an absent one); an fp64 scalar.

    The M = ⌈min(N/5, 3√N)⌉ largest weights exceed the next one, u, by w − u ~ GPD(k, σ), a generalised Pareto distribution. For
    k < 1/2 the variance of w is finite, for k > 0.7 importance sampling is unreliable, at k = 1 the mean is infinite. Estimator:
    Zhang and Stephens 2009 (doi 10.1198/tech.2009.08017) with PSIS's prior k̂ ← (M·k̂ + 5)/(M + 10) (arXiv 1507.02646 app. C).
    NaN when the tail has fewer than 5 weights or, as for equal policies, does not vary.
    """
    w = log_weights.double().sort(descending=True).values
    total = torch.isfinite(w).sum()
    size = torch.minimum(total / 5, 3 * total.double().sqrt()).ceil().long()
    most = math.ceil(min(w.numel() / 5, 3 * math.sqrt(w.numel())))
    if most < SMALLEST_TAIL:
        return w.new_full((), torch.nan)
    scaled = (w - w[0]).exp()  # relative to the largest: k does not depend on the scale
    # gather, because indexing with a scalar tensor would wait for the device
    tail = scaled[:most] - scaled.gather(0, size.clamp(max=w.numel() - 1)[None])
    inside = torch.arange(most, device=w.device) < size
    tail = torch.where(inside, tail, 0.0)
    # Zhang and Stephens: a grid of θ around the reciprocal of the largest excess, averaged by its profile likelihood.
    grid = 30 + int(math.sqrt(most))
    quartile = tail.gather(0, (size - (size / 4 + 0.5).floor().long()).clamp(0, most - 1)[None])
    steps = torch.arange(1, grid + 1, device=w.device, dtype=torch.float64)
    theta = 1 / tail[0] + (1 - (grid / (steps - 0.5)).sqrt()) / (3 * quartile)
    k = _shape(theta, tail, size)
    likelihood = size * ((-theta / k).log() - k - 1)
    mean_theta = (theta * torch.softmax(likelihood, 0)).sum()
    k_hat = _shape(mean_theta[None], tail, size)[0]
    shrunk = (size * k_hat + 5) / (size + 10)
    return torch.where((size >= SMALLEST_TAIL) & (quartile[0] > 0), shrunk, torch.nan)


def _shape(theta: Tensor, tail: Tensor, size: Tensor) -> Tensor:
    """Zhang and Stephens' shape k(θ) = mean log(1 − θ·x) over the `size` excesses x in `tail`, which may be padded by zeros."""
    return torch.log1p(-theta[:, None] * tail[None]).sum(-1) / size.clamp(min=1)
