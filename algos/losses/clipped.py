"""Losses that clip the ratio of two policies token by token, such as PPO."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor

from algos.losses.base import TokenLoss, loss
from algos.parameters import LARGE, LowerOffset, UpperOffset
from algos.ratios import bounded_exp

DualClip = Annotated[Annotated[float, Interval(gt=1, le=LARGE)] | None, "an absolute ratio above 1, up to 1e9, or null"]


@loss(anchored=True)
def ppo(
    logp: Tensor, logp_prox: Tensor, advantages: Tensor, mask: Tensor,
    *, eps_low: LowerOffset, eps_high: UpperOffset, dual_clip: DualClip,
) -> TokenLoss:  # fmt: skip
    """Proximal policy optimisation with separate clip ranges and an optional dual clip.

    L = max(−A·r, −A·clip(r, 1−ε_low, 1+ε_high)), and with a dual clip c, where A < 0: L = min(L, −A·c)

    where r = π_θ/π_prox (`logp`, `logp_prox`), A = `advantages`, ε = `eps_low`, `eps_high` (offsets from ratio 1),
    c = `dual_clip` > 1 (absolute ratio) or None. Source: arXiv 1707.06347 eq. 7; asymmetric range: DAPO, arXiv
    2503.14476 eq. 10; dual clip: arXiv 1912.09729 eq. 5. Gradient: −A·r·∇log π_θ where not clipped, else 0.
    Limits: at r = 1, or for ε_low = 1, ε_high → ∞ without dual clip, the gradient of −A·r.
    Raises ValueError on eps_low or eps_high < 0, eps_low > 1 or dual_clip ≤ 1.
    """
    return TokenLoss(*clipped_surrogate(bounded_exp(logp - logp_prox), advantages, eps_low, eps_high, dual_clip))


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, eps_low: float, eps_high: float, dual_clip: float | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return PPO's loss, a bool mask where it is not −A·r, and one where the dual clip acts (None without one); r = `ratio`."""
    free = -advantages * ratio
    value, capped = torch.maximum(free, -advantages * ratio.clamp(1 - eps_low, 1 + eps_high)), None
    if dual_clip is not None:
        cap = dual_clip * advantages.abs()
        value, capped = torch.minimum(value, cap), value > cap
    return value, value != free, capped
