"""Losses of the form −w·A·log π_θ, whose weight w of the advantage A is a function of policy ratios and carries no gradient."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor

from algos.losses.base import TokenLoss, loss
from algos.parameters import LARGE, SMALL, Infinite, LowerRatio, UpperRatio
from algos.ratios import LOG_RATIO_BOUND, at_level, bounded_exp

Taper = Annotated[
    Annotated[float, Interval(ge=SMALL, le=LARGE)] | Infinite,
    "a positive absolute ratio, 1 in the paper: from 1e-9 to 1e9, or .inf for no bound",
]
Kernel = Annotated[float, Interval(ge=0, le=100), "≥ 0 and finite, at most 100"]


@loss(anchored=False)
def pg(logp: Tensor, logp_prox: Tensor | None, advantages: Tensor, mask: Tensor) -> TokenLoss:
    """Pure policy gradient (REINFORCE); GPG's loss is the same function.

    L = −A·log π_θ

    where A = `advantages`, log π_θ = `logp`; `logp_prox` is not read. Source: Williams 1992, doi 10.1007/BF00992696;
    GPG, arXiv 2504.02546. Gradient: −A·∇log π_θ, the gradient of `ppo` at π_θ = π_prox.
    """
    return TokenLoss(-advantages * logp)


@loss(anchored=False)
def cross_entropy(logp: Tensor, logp_prox: Tensor | None, advantages: Tensor, mask: Tensor) -> TokenLoss:
    """Cross entropy of the sampled tokens: supervised training on the responses.

    L = −log π_θ

    where log π_θ = `logp`; neither `logp_prox` nor `advantages` is read. Gradient: −∇log π_θ, that of `pg` with A = 1.
    """
    return TokenLoss(-logp)


@loss(anchored=True)
def cispo(
    logp: Tensor, logp_prox: Tensor, advantages: Tensor, mask: Tensor, *, lower: LowerRatio, upper: UpperRatio
) -> TokenLoss:
    """Clipped importance-sampling policy optimisation: the weight is clipped, and no token loses its gradient.

    L = −sg(clip(r, lower, upper))·A·log π_θ

    where r = π_θ/π_prox (`logp`, `logp_prox`), A = `advantages`, `lower`, `upper` absolute ratios (lower = 0: upper
    bound only), sg stops the gradient. Source: MiniMax-M1, arXiv 2506.13585 eq. 4 and 5. Gradient: −clip(r)·A·∇log π_θ.
    Limits: at r = 1 the gradient of `ppo` and `pg`; lower = 0, upper → ∞ the gradient of −A·r; lower = upper = 1 is
    `pg`. Raises ValueError unless 0 ≤ lower ≤ 1 ≤ upper.
    """
    ratio = bounded_exp((logp - logp_prox).detach())
    return TokenLoss(-ratio.clamp(lower, upper) * advantages * logp, (ratio < lower) | (ratio > upper))


@loss(anchored=True)
def rollout_is(
    logp: Tensor, logp_prox: Tensor, advantages: Tensor, mask: Tensor, *, lower: LowerRatio, upper: UpperRatio
) -> TokenLoss:
    """Importance-sampled policy gradient that drops tokens whose ratio is out of range.

    L = −sg(r·1{lower ≤ r ≤ upper})·A·log π_θ

    where r = π_θ/π_prox (`logp`, `logp_prox`; π_prox is the sampler's μ with proximal=rollout), A = `advantages`, `lower`,
    `upper` absolute ratios, inclusive, sg stops the gradient. Source: SkyRL's loss of that name (its bounds are exclusive offsets
    from 1); the weight is IcePop's, arXiv 2510.18855. Gradient: −r·A·∇log π_θ in range, 0 outside.
    Limits: at r = 1 the gradient of `ppo`; lower = 0, upper → ∞ the gradient of −A·r.
    Raises ValueError unless 0 ≤ lower ≤ 1 ≤ upper.
    """
    ratio = bounded_exp((logp - logp_prox).detach())
    outside = (ratio < lower) | (ratio > upper)
    return TokenLoss(-torch.where(outside, 0.0, ratio) * advantages * logp, outside)


@loss(anchored=True)
def topr(logp: Tensor, logp_prox: Tensor, advantages: Tensor, mask: Tensor, *, upper: Taper) -> TokenLoss:
    """Tapered off-policy REINFORCE: only tokens of negative advantage are weighted, by their truncated sequence ratio.

    L = −w·A·log π_θ,  w = 1 where A ≥ 0,  sg(min(Π_τ r_τ, upper)) where A < 0

    where r = π_θ/π_prox (`logp`, `logp_prox`), the product is over the response's tokens (`mask`), A = `advantages`, `upper` > 0
    an absolute ratio, 1 in the paper, sg stops the gradient. Source: arXiv 2503.14286 section 3, in its symbols a⁺ = b⁺ = 1,
    a⁻ = 0, b⁻ = upper. Gradient: −w·A·∇log π_θ. Limits: at r = 1 and upper ≥ 1 the gradient of `pg`; for A ≥ 0 it is `pg`.
    Raises ValueError on upper ≤ 0.
    """
    product = bounded_exp(at_level((logp - logp_prox).detach(), mask, "sequence"))
    negative = advantages < 0
    weight = torch.where(negative, product.clamp(max=upper), 1.0)
    return TokenLoss(-weight * advantages * logp, negative & (product > upper))


@loss(anchored=True)
def vespo(
    logp: Tensor, logp_prox: Tensor, advantages: Tensor, mask: Tensor,
    *, k_pos: Kernel, lambda_pos: Kernel, k_neg: Kernel, lambda_neg: Kernel,
) -> TokenLoss:  # fmt: skip
    """Variational sequence-level soft policy optimisation: the sequence ratio is reshaped by a gamma-shaped kernel.

    L = −sg(φ(w))·A·log π_θ,  φ(w) = w^k·exp(λ·(1 − w)),  (k, λ) = (k_pos, λ_pos) where A ≥ 0, else (k_neg, λ_neg)

    where w = Π_τ π_θ/π_prox over the response's tokens (`logp`, `logp_prox`, `mask`), A = `advantages`; k, λ ≥ 0. sg stops the
    gradient. φ peaks at w = k/λ and is capped at e²⁰. Source: arXiv 2602.10693. Gradient: −φ(w)·A·∇log π_θ.
    Limits: w = 1 gives φ = 1, the gradient of `pg`; k = λ = 0 is `pg`; k = 1, λ = 0 is the untruncated sequence weight.
    Raises ValueError on a negative k or λ.
    """
    log_w = at_level((logp - logp_prox).detach(), mask, "sequence").clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    w = log_w.exp()
    log_phi = torch.where(advantages >= 0, k_pos * log_w + lambda_pos * (1 - w), k_neg * log_w + lambda_neg * (1 - w))
    return TokenLoss(-log_phi.clamp(max=LOG_RATIO_BOUND).exp() * advantages * logp)
