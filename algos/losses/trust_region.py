"""Losses that drop a token once its probability has left a trust region around the anchor's."""

from __future__ import annotations

import torch
from torch import Tensor

from algos.losses.base import TokenLoss, check, loss
from algos.ratios import bounded_exp


@loss(anchored=True)
def dppo(
    logp: Tensor,
    logp_prox: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    divergence: str,
    delta_low: float,
    delta_high: float,
) -> TokenLoss:
    """Divergence proximal policy optimisation: a divergence of the sampled token, not its ratio, ends the update.

    L = −A·r·M,  M = 0 where (A > 0, r > 1, D > δ_high) or (A < 0, r < 1, D > δ_low), else 1
    D = |p − q| (divergence=tv)  or  q·log(q/p) + (1 − q)·log((1 − q)/(1 − p)) (divergence=kl)

    where p = π_θ, q = π_prox the probabilities of the sampled token (`logp`, `logp_prox`), r = p/q, A = `advantages`,
    δ = `delta_low`, `delta_high`: probabilities in [0, 1] for tv, nats for kl. The paper anchors on μ
    (proximal=rollout). Source: arXiv 2602.04879, binary TV and binary KL. Gradient: −A·r·M·∇log π_θ; M carries none.
    Limits: at r = 1 the gradient of `ppo`; δ → ∞ the gradient of −A·r. No cap on r: add a correction for one.
    Raises ValueError on an unknown divergence or a negative δ (for tv also above 1).
    """
    if divergence not in ("tv", "kl"):
        raise ValueError(f"loss.divergence={divergence}: must be tv or kl")
    most, meaning = (1.0, "a probability in [0, 1]") if divergence == "tv" else (torch.inf, "≥ 0, in nats")
    check("delta_low", delta_low, 0 <= delta_low <= most, meaning)
    check("delta_high", delta_high, 0 <= delta_high <= most, meaning)
    now = logp.detach()
    distance = _binary_tv(now, logp_prox) if divergence == "tv" else _binary_kl(now, logp_prox)
    too_high = (advantages > 0) & (now > logp_prox) & (distance > delta_high)
    too_low = (advantages < 0) & (now < logp_prox) & (distance > delta_low)
    dropped = too_high | too_low
    return TokenLoss(torch.where(dropped, 0.0, -advantages * bounded_exp(logp - logp_prox)), dropped)


def _binary_tv(logp: Tensor, logq: Tensor) -> Tensor:
    return (logp.exp() - logq.exp()).abs()


def _binary_kl(logp: Tensor, logq: Tensor) -> Tensor:
    """KL((q, 1−q) ‖ (p, 1−p)); 1 − p from expm1, because p is close to 1 on most tokens; 0·log 0 = 0."""
    rest_p, rest_q = -torch.expm1(logp), -torch.expm1(logq)
    return logq.exp() * (logq - logp) + torch.special.xlogy(rest_q, rest_q) - torch.special.xlogy(rest_q, rest_p)
