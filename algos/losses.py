"""Policy-gradient losses: pure functions from log-probabilities to an unreduced token loss.

Signature: `(logp, logp_prox, advantages, mask, **params) -> TokenLoss`. `logp` [B, T] carries the gradient; `logp_prox` is the
anchor (π_old or μ, nats, detached); advantages [B, T]; mask bool, True on response tokens. Values off the mask are 0.
A correction multiplies the result; `reductions.reduce` makes it a scalar.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from algos.ratios import bounded_exp, log_ratio


class TokenLoss(NamedTuple):
    """loss [B, T], unreduced, 0 off the mask; clipped [B, T] bool where clipping took the gradient, or None if it cannot."""

    loss: Tensor
    clipped: Tensor | None = None


def loss(*, anchored: bool) -> Callable:
    """Mark a function as a loss. `anchored`: whether it reads `logp_prox`; a run whose loss does not may skip that forward."""

    def mark(function: Callable) -> Callable:
        function.anchored = anchored
        return function

    return mark


@loss(anchored=True)
def ppo(
    logp: Tensor,
    logp_prox: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_low: float,
    eps_high: float,
    dual_clip: float | None,
) -> TokenLoss:
    """Proximal policy optimisation with separate clip ranges and an optional dual clip.

    L = max(−A·r, −A·clip(r, 1−ε_low, 1+ε_high)), and with a dual clip c, where A < 0: L = min(L, −A·c)

    where r = π_θ/π_prox (`logp`, `logp_prox`), A = `advantages`, ε = `eps_low`, `eps_high` (offsets from ratio 1),
    c = `dual_clip` > 1 (absolute ratio). Source: arXiv 1707.06347 eq. 7; asymmetric range: DAPO, arXiv 2503.14476 eq. 10;
    dual clip: arXiv 1912.09729 eq. 5. Gradient: −A·r·∇log π_θ where not clipped, else 0.
    Limits: r = 1 or ε → ∞ without dual clip: the gradient of A·r. Raises ValueError on ε < 0, ε_low > 1 or c ≤ 1.
    """
    if not 0 <= eps_low <= 1 or eps_high < 0:
        raise ValueError(f"loss.eps_low={eps_low}, loss.eps_high={eps_high}: offsets from ratio 1, 0 ≤ eps_low ≤ 1, eps_high ≥ 0")
    if dual_clip is not None and dual_clip <= 1:
        raise ValueError(f"loss.dual_clip={dual_clip}: an absolute ratio above 1, or null")
    ratio = bounded_exp(log_ratio(logp, logp_prox, mask))
    free = -advantages * ratio
    clipped_at_range = -advantages * ratio.clamp(1 - eps_low, 1 + eps_high)
    value, clipped = torch.maximum(free, clipped_at_range), clipped_at_range > free
    if dual_clip is not None:
        cap = -advantages * dual_clip
        capped = (advantages < 0) & (value > cap)
        value, clipped = torch.where(capped, cap, value), clipped | capped
    return TokenLoss(torch.where(mask, value, 0.0), clipped & mask)


@loss(anchored=False)
def pg(logp: Tensor, logp_prox: Tensor | None, advantages: Tensor, mask: Tensor) -> TokenLoss:
    """Pure policy gradient (REINFORCE).

    L = −A·log π_θ

    where A = `advantages`, log π_θ = `logp`; `logp_prox` is not read. Source: Williams 1992, doi 10.1007/BF00992696.
    Gradient: −A·∇log π_θ, the gradient of `ppo` at π_θ = π_prox.
    """
    return TokenLoss(-advantages * torch.where(mask, logp, 0.0))
