"""How far the rollout engine is from the trainer, on one batch. Every statistic is of the raw ratio, before any bound."""

from __future__ import annotations

import torch
from torch import Tensor

from algos.ratios import LOG_RATIO_BOUND


@torch.no_grad()
def mismatch(log_ratio: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Mismatch statistics of l = log π − log μ ([B, T], nats, 0 off `mask`), as fp64 scalars.

    k1 = E[−l] and k3 = E[ρ − 1 − l] both estimate KL(μ‖π) in nats per token, k3 ≥ 0 pointwise (Schulman,
    joschu.net/blog/kl-approx.html). ess = (Σw)²/(n·Σw²) in (0, 1] with w = ρ per token (ess_token), w = exp Σ_t l per
    response (ess_sequence), computed relative to the largest weight: nothing is clamped, so a heavy tail shows.
    """
    l, present = log_ratio.double(), mask.any(-1)
    n = mask.sum().clamp(min=1)
    return {
        "rollout_corr/kl": -l.sum() / n,
        "rollout_corr/k3_kl": torch.where(mask, torch.expm1(l) - l, 0.0).sum() / n,
        "mismatch/ess_token": _ess(l[mask]),
        "mismatch/ess_sequence": _ess(l.sum(-1)[present]),
        "mismatch/log_ratio_max_abs": l.abs().amax() if l.numel() else l.new_zeros(()),
        "mismatch/beyond_bound": (l.abs() > LOG_RATIO_BOUND).sum() / n,
    }


def _ess(log_weights: Tensor) -> Tensor:
    if log_weights.numel() == 0:
        return log_weights.new_ones(())
    w = (log_weights - log_weights.amax()).exp()  # the scale cancels; equal weights give 1 to the bit
    return w.sum().square() / (w.square().sum() * w.numel())
