"""Losses that replace the clip by a smooth function of the ratio."""

from __future__ import annotations

import torch
from torch import Tensor

from algos.losses.base import TokenLoss, check, loss
from algos.ratios import bounded_exp


@loss(anchored=True)
def sapo(
    logp: Tensor, logp_prox: Tensor, advantages: Tensor, mask: Tensor, *, tau_pos: float, tau_neg: float
) -> TokenLoss:
    """Soft adaptive policy optimisation: a sigmoid gate in place of the clip.

    L = −A·f(r),  f(r) = (4/τ)·σ(τ·(r − 1)),  τ = τ_pos where A > 0, else τ_neg

    where r = π_θ/π_prox (`logp`, `logp_prox`), A = `advantages`, σ the logistic function, τ = `tau_pos`, `tau_neg` > 0.
    Source: arXiv 2511.20347 section 3. Gradient: −A·r·4σ(1 − σ)·∇log π_θ, whose factor 4σ(1 − σ) is 1 at r = 1.
    Limits: at r = 1 the gradient of `ppo` (the value is −2A/τ, not −A); τ → 0 the gradient of −A·r.
    Raises ValueError on τ ≤ 0.
    """
    check("tau_pos", tau_pos, tau_pos > 0, "a positive temperature")
    check("tau_neg", tau_neg, tau_neg > 0, "a positive temperature")
    tau = torch.where(advantages > 0, advantages.new_full((), tau_pos), tau_neg)
    return TokenLoss(-advantages * torch.sigmoid(tau * (bounded_exp(logp - logp_prox) - 1)) * 4 / tau)


@loss(anchored=True)
def dro(logp: Tensor, logp_prox: Tensor, advantages: Tensor, mask: Tensor, *, beta: float) -> TokenLoss:
    """Direct reward optimisation: policy gradient with a quadratic penalty on the log ratio.

    L = −(A·log π_θ − (β/2)·(log π_θ − log π_prox)²)

    where log π_θ = `logp`, log π_prox = `logp_prox`, A = `advantages`, β = `beta` > 0 (per nat). Source: arXiv
    2405.19107, token by token; the same form is Kimi k1.5's with β = τ (arXiv 2501.12599 section 2.3).
    Gradient: −(A − β·log r)·∇log π_θ. Limits: at r = 1 the gradient of `pg`; β → 0 is `pg`. Raises ValueError on β ≤ 0.
    """
    check("beta", beta, beta > 0, "a positive coefficient; use loss=pg for none")
    return TokenLoss(-(advantages * logp - beta / 2 * (logp - logp_prox).square()))
