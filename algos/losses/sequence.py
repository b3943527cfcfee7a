"""Losses with the length-normalised ratio of the response, in a token form that lets advantages differ by token.

The ratio at a token has the value of the response's ratio but the gradient of the token's own log-probability. If all tokens of a
response share an advantage and are averaged, the gradient equals that through the response's ratio (GSPO's remark on GSPO-token).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from algos.losses.base import TokenLoss, loss
from algos.losses.clipped import clipped_surrogate
from algos.parameters import LowerOffset, LowerRatio, UpperOffset, UpperRatio
from algos.ratios import at_level, bounded_exp


@loss(anchored=True)
def gspo(
    logp: Tensor, logp_prox: Tensor, advantages: Tensor, mask: Tensor, *, eps_low: LowerOffset, eps_high: UpperOffset
) -> TokenLoss:
    """Group sequence policy optimisation, in its token form.

    L = max(−A·s, −A·clip(s, 1−ε_low, 1+ε_high)),  s_t = sg(exp(mean_τ log r_τ))·π_θ(t)/sg(π_θ(t))

    where r = π_θ/π_prox (`logp`, `logp_prox`), the mean is over the response's tokens (`mask`), A = `advantages`,
    ε = `eps_low`, `eps_high` (offsets from ratio 1), sg stops the gradient. Source: arXiv 2507.18071 eq. 5 to 7,
    token form eq. 13 and 14. Gradient: −A·s·∇log π_θ where not clipped. The paper reduces by seq_mean_token_mean.
    Limits: at π_θ = π_prox the gradient of `ppo`; for one A per response, the gradient through the response's ratio.
    Raises ValueError on eps_low or eps_high < 0, or eps_low > 1.
    """
    ratio = _straight_through(at_level((logp - logp_prox).detach(), mask, "geometric"), logp)
    return TokenLoss(*clipped_surrogate(ratio, advantages, eps_low, eps_high))


@loss(anchored=True)
def luspo(
    logp: Tensor, logp_prox: Tensor, advantages: Tensor, mask: Tensor, *, eps_low: LowerOffset, eps_high: UpperOffset
) -> TokenLoss:
    """Length-unbiased sequence policy optimisation: `gspo` times the length of the response.

    L = n·L_gspo

    where n is the number of the response's tokens in `mask`; all else as in `gspo`. Source: arXiv 2602.05261. Gradient: n times
    that of `gspo`. Limit: with reduce=seq_mean_token_mean it equals `gspo` with reduce=seq_mean_token_sum. Use
    seq_mean_token_mean, or the length counts twice. Raises ValueError on eps_low or eps_high < 0, or eps_low > 1.
    """
    value, clipped, _ = gspo(logp, logp_prox, advantages, mask, eps_low=eps_low, eps_high=eps_high)
    return TokenLoss(mask.sum(-1, keepdim=True) * value, clipped)


@loss(anchored=True)
def gmpo(logp: Tensor, logp_prox: Tensor, advantages: Tensor, mask: Tensor, *, lower: LowerRatio, upper: UpperRatio) -> TokenLoss:
    """Geometric-mean policy optimisation: the ratio is the geometric mean of one-sidedly clipped token ratios.

    L = −A·g,  g = exp(mean_τ log c_τ),  c = min(r, upper) where A ≥ 0, max(r, lower) where A < 0

    where r = π_θ/π_prox (`logp`, `logp_prox`), the mean is over the response's tokens (`mask`), A = `advantages`, `lower`,
    `upper` absolute ratios (the paper's e^{±0.4}). Source: arXiv 2507.20673 section 3. Gradient: −A·g·∇log π_θ on tokens that
    are not clipped, in the token form of `gspo`. The paper reduces by seq_mean_token_mean.
    Limits: at π_θ = π_prox the gradient of `ppo`; lower = 0, upper = ∞ is `gspo` without clipping.
    Raises ValueError unless 0 ≤ lower ≤ 1 ≤ upper.
    """
    log_r, up = logp - logp_prox, advantages >= 0
    log_lower, log_upper = math.log(lower) if lower > 0 else -math.inf, math.log(upper)
    log_c = torch.where(up, log_r.clamp(max=log_upper), log_r.clamp(min=log_lower))
    clipped = torch.where(up, log_r > log_upper, log_r < log_lower)
    return TokenLoss(-advantages * _straight_through(at_level(log_c.detach(), mask, "geometric"), log_c), clipped)


def _straight_through(log_value: Tensor, log_gradient: Tensor) -> Tensor:
    """A tensor of value exp(`log_value`), whose gradient is that value times the gradient of `log_gradient`."""
    return bounded_exp(log_value) * (log_gradient - log_gradient.detach()).exp()
