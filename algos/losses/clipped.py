"""Losses that clip the ratio of two policies token by token."""

from __future__ import annotations

import torch
from torch import Tensor

from algos.losses.base import TokenLoss, check, check_clip_range, loss
from algos.masks import compared
from algos.ratios import bounded_exp


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
    c = `dual_clip` > 1 (absolute ratio) or None. Source: arXiv 1707.06347 eq. 7; asymmetric range: DAPO, arXiv
    2503.14476 eq. 10; dual clip: arXiv 1912.09729 eq. 5. Gradient: −A·r·∇log π_θ where not clipped, else 0.
    Limits: at r = 1, or for ε_low = 1, ε_high → ∞ without dual clip, the gradient of −A·r.
    Raises ValueError on ε < 0, ε_low > 1 or c ≤ 1.
    """
    check_clip_range(eps_low, eps_high)
    if dual_clip is not None:
        check("dual_clip", dual_clip, dual_clip > 1, "an absolute ratio above 1, or null")
    return TokenLoss(*clipped_surrogate(bounded_exp(logp - logp_prox), advantages, eps_low, eps_high, dual_clip))


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, eps_low: float, eps_high: float, dual_clip: float | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """max(−A·r, −A·clip(r, 1−ε_low, 1+ε_high)), at most |A|·c; where it is not −A·r; and where that is the cap.

    The cap binds for A < 0 only, as the rest is ≤ 0 for A ≥ 0.
    """
    slope = -advantages
    free = slope * ratio
    with torch.no_grad():
        value, capped = ratio.clamp(1 - eps_low, 1 + eps_high).mul_(slope), None
        torch.maximum(value, free, out=value)  # in place: what fits a CPU's cache is half as much as what is made anew
        if dual_clip is not None:
            cap = slope.abs().mul_(dual_clip)
            capped = compared(torch.gt, value, cap).to(torch.bool)
            torch.minimum(value, cap, out=value)
    return *_Bounded.apply(free, value), capped


class _Bounded(torch.autograd.Function):
    """(value, value ≠ free): `value` has the gradient of `free` where they are equal, and is a constant elsewhere."""

    @staticmethod
    def forward(ctx, free: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        bound = compared(torch.ne, value, free)
        clipped = bound.to(torch.bool)
        ctx.save_for_backward(bound)
        ctx.mark_non_differentiable(clipped)
        return value, clipped

    @staticmethod
    def backward(ctx, grad: Tensor, _):
        (bound,) = ctx.saved_tensors
        return torch.addcmul(grad, grad, bound, value=-1), None
