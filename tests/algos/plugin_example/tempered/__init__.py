"""A plug-in package for Faultline: its author writes the equation; masking and dtypes come with the decorator."""

from __future__ import annotations

import torch
from torch import Tensor

from algos.advantages import advantage
from algos.losses import TokenLoss, loss
from algos.ratios import bounded_exp


@loss(anchored=True)
def tempered_pg(logp: Tensor, logp_prox: Tensor, advantages: Tensor, mask: Tensor, *, temperature: float) -> TokenLoss:
    """L = −sg(r^temperature)·A·log π_θ, r = π_θ/π_prox: between pure policy gradient (0) and the token weight (1)."""
    return TokenLoss(-bounded_exp(temperature * (logp - logp_prox).detach()) * advantages * logp)


def opening(log_ratio: Tensor, mask: Tensor, *, bound: float) -> Tensor:
    """Keep a response only if its first token has |log ρ| ≤ bound."""
    first = mask & (mask.cumsum(-1) == 1)
    return ((log_ratio.abs() <= bound) | ~first).all(-1, keepdim=True).expand_as(mask)


@advantage()
def median(rewards: Tensor, *, kept: Tensor | None = None) -> Tensor:
    """A = R − median of the kept responses of the prompt."""
    kept = torch.ones_like(rewards, dtype=torch.bool) if kept is None else kept
    middle = torch.where(kept, rewards, torch.nan).nanmedian(-1, keepdim=True).values
    return torch.where(kept, rewards - middle, 0.0)
