"""Losses with a ratio of a token's whole prefix: the product of the token ratios up to the token, or a substitute for it."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor

from algos.losses.base import TokenLoss, loss
from algos.parameters import LowerRatio, UpperRatio
from algos.ratios import LOG_RATIO_BOUND, at_level, bounded_exp

Nats = Annotated[float, Interval(gt=0, le=LOG_RATIO_BOUND), "nats, positive, up to 20"]
Power = Annotated[float, Interval(ge=0, le=1), "an exponent in [0, 1]"]


@loss(anchored=True)
def ctpo(
    logp: Tensor, logp_prox: Tensor, advantages: Tensor, mask: Tensor,
    *, log_low: Nats, log_high: Nats, log_dual_clip: Nats | None, power: Power,
) -> TokenLoss:  # fmt: skip
    """Cumulative token policy optimisation: the ratio of the prefix, in a window that widens with the position.

    L = max(−A·s, −A·clip(s, e^(−low·t^p), e^(high·t^p))), and where A < 0: L = min(L, −A·e^(c·t^p)),
    s_t = sg(Π_{τ ≤ t} r_τ)·π_θ(t)/sg(π_θ(t))

    where r = π_θ/π_prox (`logp`, `logp_prox`), t counts the tokens of `mask` from 1, sg stops the gradient, A = `advantages`;
    low, high, c = `log_low`, `log_high`, `log_dual_clip` in nats, c None for no dual clip; p = `power`. The spread of a sum of t
    log ratios grows as √t, hence p = ½. Source: arXiv 2605.07331; the form and the numbers of the window are those of its
    authors' code, horizon-llm/CTPO `cum-token-cumprod-la`. Gradient: −A·s·∇log π_θ where not clipped.
    Limits: at π_θ = π_prox the gradient of `ppo`; without bounds −A·Π_{τ ≤ t} r, the exact correction of a token's prefix.
    """
    log_s = at_level((logp - logp_prox).detach(), mask, "prefix").clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    ratio = log_s.exp() * (1 + logp - logp.detach())
    width = mask.cumsum(-1).clamp(min=1).to(log_s.dtype) ** power
    inside = torch.minimum(torch.maximum(log_s, -log_low * width), log_high * width)
    free, bounded, capped = -advantages * ratio, -advantages * inside.exp(), None
    clipped = bounded > free
    value = torch.where(clipped, bounded, free)
    if log_dual_clip is not None:
        cap = advantages.abs() * (log_dual_clip * width).exp()
        capped = (advantages < 0) & (value > cap)
        value, clipped = torch.where(capped, cap, value), clipped | capped
    return TokenLoss(value, clipped, capped)


@loss(anchored=True)
def minpro(
    logp: Tensor, logp_prox: Tensor, advantages: Tensor, mask: Tensor, *, lower: LowerRatio, upper: UpperRatio
) -> TokenLoss:
    """Minimum prefix ratio: the smallest ratio of the earlier tokens stands for their product.

    L = −sg(clip(m·r, lower, upper))·A·log π_θ,  m_t = min_{τ < t} r_τ, 1 at the first token

    where r = π_θ/π_prox (`logp`, `logp_prox`), t counts the tokens of `mask`, A = `advantages`, `lower`, `upper` absolute ratios,
    sg stops the gradient. At the first two tokens m·r is the exact product. Source: MinPRO, arXiv 2601.22718; the equation was
    taken from a survey that quotes it, and the paper's bounds were not found. Gradient: −clip(m·r)·A·∇log π_θ.
    Limits: at r = 1 the gradient of `pg`; where every earlier ratio is 1 or a response has one token, `cispo`.
    """
    log_r = torch.where(mask, (logp - logp_prox).detach(), torch.inf)
    least = torch.cat([torch.full_like(log_r[:, :1], torch.inf), log_r], -1)[:, :-1].cummin(-1).values
    ratio = bounded_exp(torch.where(mask, log_r, 0.0) + torch.where(least.isinf(), 0.0, least))
    return TokenLoss(-ratio.clamp(lower, upper) * advantages * logp, (ratio < lower) | (ratio > upper))
