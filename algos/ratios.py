"""Log ratios of two policies at the levels where corrections and losses use them."""

from __future__ import annotations

import torch
from torch import Tensor

LOG_RATIO_BOUND = 20.0
"""|log ρ| is clamped here before exp: e²⁰ ≈ 4.9e8 keeps ρ, ρ² and their sums finite in fp32. The clamped share is a metric."""


def log_ratio(logp: Tensor, logp_base: Tensor, mask: Tensor) -> Tensor:
    """l = log π − log μ in nats on response tokens, 0 elsewhere; [B, T] in the wider of the two dtypes, at least fp32.

    Masked by `where`, so padding may hold anything, NaN included.
    """
    assert logp.shape == logp_base.shape == mask.shape and mask.dtype == torch.bool and mask.ndim == 2
    dtype = torch.promote_types(torch.promote_types(logp.dtype, logp_base.dtype), torch.float32)
    zero = torch.zeros((), dtype=dtype, device=logp.device)
    return torch.where(mask, logp.to(dtype), zero) - torch.where(mask, logp_base.to(dtype), zero)


def at_level(values: Tensor, mask: Tensor, level: str) -> Tensor:
    """Per-token values (0 off the mask) at a level: token [B, T] as they are; [B, 1] of sequence Σ_t, geometric mean_t, worst_token max_t.

    A response without tokens gives 0.
    """
    if level == "token":
        return values
    if level == "worst_token":
        lowest = torch.finfo(values.dtype).min
        worst = torch.where(mask, values, lowest).amax(-1, keepdim=True)
        return torch.where(mask.any(-1, keepdim=True), worst, 0.0)
    total = values.sum(-1, keepdim=True)
    if level == "sequence":
        return total
    if level == "geometric":
        return total / mask.sum(-1, keepdim=True).clamp(min=1)
    raise ValueError(f"level={level}: accepted are token, sequence, geometric, worst_token")


def bounded_exp(log_values: Tensor) -> Tensor:
    """exp with its argument clamped to ±LOG_RATIO_BOUND; the gradient is 0 where it was clamped."""
    return log_values.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
