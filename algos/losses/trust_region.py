"""Losses that drop a token once its probability has left a trust region around that of the anchor policy."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from algos.losses.base import TokenLoss, loss
from algos.parameters import LARGE, Infinite
from algos.ratios import binary_kl, bounded_exp

Delta = Annotated[
    Annotated[float, Interval(ge=0, le=LARGE)] | Infinite,
    "≥ 0: a probability in [0, 1] for tv, nats for kl, or .inf for no bound",
]
Cap = Annotated[Annotated[float, Interval(ge=1, le=LARGE)] | None, "an absolute ratio ≥ 1, up to 1e9, or null"]


@loss(anchored=True)
def dppo(
    logp: Tensor, logp_prox: Tensor, advantages: Tensor, mask: Tensor,
    *, divergence: Literal["tv", "kl"], delta_low: Delta, delta_high: Delta, upper: Cap,
) -> TokenLoss:  # fmt: skip
    """Divergence proximal policy optimisation: a divergence of the sampled token, not its ratio, ends the update.

    L = −A·min(r, upper)·M,  M = 0 where (A > 0, r > 1, D > δ_high) or (A < 0, r < 1, D > δ_low), else 1
    D = |p − q| (divergence=tv)  or  q·log(q/p) + (1 − q)·log((1 − q)/(1 − p)) (divergence=kl)

    where p = π_θ, q = π_prox are the probabilities of the sampled token (`logp`, `logp_prox`), r = p/q, A = `advantages`,
    δ = `delta_low`, `delta_high`: probabilities in [0, 1] for tv, nats for kl. `upper` is an absolute ratio, None for no cap:
    a capped token keeps a gradient, of weight `upper`, unlike a clipped one. The paper anchors on the sampler's μ
    (proximal=rollout). Source: arXiv 2602.04879, binary TV and binary KL, section 5.4 for the cap.
    Gradient: −A·min(r, upper)·M·∇log π_θ; M has no gradient. Limits: at r = 1 the gradient of `ppo`; δ → ∞ without a cap
    the gradient of −A·r. Raises ValueError on an unknown divergence, a negative δ (for tv also above 1) or upper < 1.
    """
    for key, delta in {"delta_low": delta_low, "delta_high": delta_high}.items():
        if divergence == "tv" and delta > 1:
            raise ValueError(f"loss.{key}={delta}: must be a probability in [0, 1] with divergence=tv")
    now, ratio = logp.detach(), bounded_exp(logp - logp_prox)
    distance = (now.exp() - logp_prox.exp()).abs() if divergence == "tv" else binary_kl(now, logp_prox)
    too_high = (advantages > 0) & (now > logp_prox) & (distance > delta_high)
    too_low = (advantages < 0) & (now < logp_prox) & (distance > delta_low)
    dropped = too_high | too_low
    if upper is None:
        return TokenLoss(torch.where(dropped, 0.0, -advantages * ratio), dropped)
    capped = ~dropped & (ratio > upper)
    ratio = torch.where(capped, upper * (1 + logp - now), ratio)  # the value upper, with the gradient of a weight upper
    return TokenLoss(torch.where(dropped, 0.0, -advantages * ratio), dropped | capped, capped)
