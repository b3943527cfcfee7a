"""Losses that restrain the few tokens whose log-probability and advantage covary most, because learning from them costs entropy.

Covariances and their ranking concern all tokens of the mini-batch. So tokens are selected once per mini-batch, at the anchor
π_prox, which is known before the first gradient step. Each micro-batch gets its part of the selection. The papers select at π_θ
inside the loss, which makes the update depend on the micro-batch size. At π_θ = π_prox both ways agree. No random generator is
used, so that all ranks select alike, also after a restart.
"""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor

from algos.losses.base import TokenLoss, loss
from algos.losses.clipped import clipped_surrogate
from algos.parameters import LARGE, LowerOffset, Share, UpperOffset
from algos.ratios import bounded_exp

Covariance = Annotated[float, Interval(ge=-LARGE, le=LARGE)]
Coefficient = Annotated[float, Interval(ge=0, le=1e6), "a coefficient ≥ 0, up to 1e6"]


def covariance(logp: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Each token's (log π − mean log π)·(A − mean A), with means over `mask`, [B, T] fp64; 0 off it. Source: arXiv 2505.22617."""
    tokens = mask.sum().clamp(min=1)
    logp, advantages = torch.where(mask, logp.double(), 0.0), torch.where(mask, advantages.double(), 0.0)
    return torch.where(mask, (logp - logp.sum() / tokens) * (advantages - advantages.sum() / tokens), 0.0)


@torch.no_grad()
def select_band(logp_prox: Tensor, advantages: Tensor, mask: Tensor, *, share: float, lower: float, upper: float, **_):
    """Select, by a hash, a `share` of all tokens (at least one) from those with lower < covariance < upper; [B, T] bool."""
    if not lower < upper:
        raise ValueError(f"loss.lower={lower}: must be a covariance below loss.upper={upper}")
    cov = covariance(logp_prox, advantages, mask)
    return _first(_hash(logp_prox, advantages), mask & (cov > lower) & (cov < upper), mask, share)


@torch.no_grad()
def select_top(logp_prox: Tensor, advantages: Tensor, mask: Tensor, *, share: float, **_):
    """Select the `share` of all tokens, at least one, with the largest covariance of log π_prox and advantage; [B, T] bool."""
    return _first(-covariance(logp_prox, advantages, mask), mask, mask, share)


@loss(anchored=True, select=select_band)
def clip_cov(
    logp: Tensor, logp_prox: Tensor, advantages: Tensor, mask: Tensor, selected: Tensor,
    *, eps_low: LowerOffset, eps_high: UpperOffset, share: Share, lower: Covariance, upper: Covariance,
) -> TokenLoss:  # fmt: skip
    """Clip-Cov: PPO without the gradient of a few tokens of high covariance.

    L = 0 on selected tokens, elsewhere L_ppo (no dual clip)

    where `selected` [B, T] is a `share` of all tokens among those with `lower` < covariance < `upper`, in nats times advantage.
    `select_band` chooses them on the whole mini-batch; all else is as in `ppo`. Source: arXiv 2505.22617 section 4, Clip-Cov.
    Gradient: that of `ppo`, 0 on selected tokens. Limits: with no token between the bounds it is `ppo`.
    Raises ValueError on eps_low or eps_high < 0, eps_low > 1, share outside (0, 1], lower ≥ upper.
    """
    value, clipped, _ = clipped_surrogate(bounded_exp(logp - logp_prox), advantages, eps_low, eps_high)
    return TokenLoss(torch.where(selected, 0.0, value), clipped | selected)


@loss(anchored=True, select=select_top)
def kl_cov(
    logp: Tensor, logp_prox: Tensor, advantages: Tensor, mask: Tensor, selected: Tensor,
    *, share: Share, coef: Coefficient,
) -> TokenLoss:  # fmt: skip
    """KL-Cov: importance-sampled policy gradient with a penalty on the few tokens of highest covariance.

    L = −A·r + coef·|log r|·1{selected}

    where r = π_θ/π_prox (`logp`, `logp_prox`), A = `advantages`, `coef` ≥ 0 per nat, and `selected` [B, T] is the `share` of
    all tokens with the largest covariance of log π_prox and A, which `select_top` chooses on the whole mini-batch. Source: arXiv
    2505.22617 section 4, KL-Cov. Gradient: (−A·r + coef·sign(log r)·1{selected})·∇log π_θ. Limits: coef = 0 leaves the gradient
    of −A·r. Raises ValueError on share outside (0, 1] or coef < 0.
    """
    log_r = logp - logp_prox
    return TokenLoss(-advantages * bounded_exp(log_r) + torch.where(selected, coef * log_r.abs(), 0.0))


def _first(keys: Tensor, candidates: Tensor, mask: Tensor, share: float) -> Tensor:
    """Select ⌊share·tokens of `mask`⌋ candidates, at least one, with the smallest keys; [B, T] bool. Equal keys go together."""
    worst = torch.iinfo(keys.dtype).max if keys.dtype == torch.int64 else torch.inf
    ranked = torch.where(candidates, keys, worst).flatten().sort().values
    if not ranked.numel():
        return candidates
    count = (share * mask.sum().double()).floor().long().clamp(min=1, max=ranked.numel())
    # gather, because indexing with a scalar tensor would wait for the device
    return candidates & (keys <= ranked.gather(0, count[None] - 1))


def _hash(first: Tensor, second: Tensor) -> Tensor:
    """Hash pairs of fp32 numbers to integers in [0, 2³¹), so that a token's hash does not depend on its place in the batch."""
    bits = first.float().view(torch.int32).long() * 0x9E3779B1 + second.float().view(torch.int32).long() * 0x85EBCA6B
    bits = (bits ^ (bits >> 15)) & 0xFFFFFFFF
    return ((bits * 0x2C1B3C6D) ^ (bits >> 12)) & 0x7FFFFFFF
