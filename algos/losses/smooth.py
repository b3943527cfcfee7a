"""Losses that replace the clip by a smooth function of the ratio π_θ/π_prox."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor

from algos.losses.base import TokenLoss, loss
from algos.parameters import SMALL
from algos.ratios import bounded_exp

Temperature = Annotated[float, Interval(ge=SMALL, le=1e6), "a positive temperature, from 1e-9 to 1e6"]
Beta = Annotated[float, Interval(ge=SMALL, le=1e6), "a positive coefficient, from 1e-9 to 1e6; use loss=pg for none"]


@loss(anchored=True)
def sapo(
    logp: Tensor, logp_prox: Tensor, advantages: Tensor, mask: Tensor, *, tau_pos: Temperature, tau_neg: Temperature
) -> TokenLoss:
    """Soft adaptive policy optimisation: a sigmoid gate in place of the clip.

    L = −A·f(r),  f(r) = (4/τ)·σ(τ·(r − 1)),  τ = τ_pos where A > 0, else τ_neg

    where r = π_θ/π_prox (`logp`, `logp_prox`), A = `advantages`, σ the logistic function, τ = `tau_pos`, `tau_neg` > 0.
    Source: arXiv 2511.20347 section 3. Gradient: −A·r·4σ(1 − σ)·∇log π_θ, whose factor 4σ(1 − σ) is 1 at r = 1.
    Limits: at r = 1 the gradient of `ppo` (the value is −2A/τ, not −A); τ → 0 the gradient of −A·r.
    Raises ValueError on τ ≤ 0.
    """
    tau = torch.where(advantages > 0, advantages.new_full((), tau_pos), tau_neg)
    return TokenLoss(-advantages * torch.sigmoid(tau * (bounded_exp(logp - logp_prox) - 1)) * 4 / tau)


@loss(anchored=True)
def dro(logp: Tensor, logp_prox: Tensor, advantages: Tensor, mask: Tensor, *, beta: Beta) -> TokenLoss:
    """Direct reward optimisation: policy gradient with a quadratic penalty on the log ratio.

    L = −(A·log π_θ − (β/2)·(log π_θ − log π_prox)²)

    where log π_θ = `logp`, log π_prox = `logp_prox`, r = π_θ/π_prox, A = `advantages`, β = `beta` > 0 (per nat). Source: arXiv
    2405.19107, token by token; the same form is Kimi k1.5's with β = τ (arXiv 2501.12599 section 2.3).
    Gradient: −(A − β·log r)·∇log π_θ. Limits: at r = 1 the gradient of `pg`; β → 0 is `pg`. Raises ValueError on β ≤ 0.
    """
    return TokenLoss(-(advantages * logp - beta / 2 * (logp - logp_prox).square()))
