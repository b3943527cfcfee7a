"""Estimators that give each token an advantage of its own: `(rewards [B, T], *, mask, values, **inputs) -> [B, T]`."""

from __future__ import annotations

import torch
from torch import Tensor

from algos.advantages import advantage
from algos.parameters import Discount


@advantage("mask", "values")
def gae(rewards: Tensor, *, mask: Tensor, values: Tensor, gamma: Discount, lam: Discount) -> Tensor:
    """Generalised advantage estimation on the tokens of each response.

    A_t = Σ_k (γλ)^k·δ_{t+k},  δ_t = R_t + γ·V_{t+1} − V_t,  V = 0 after the last token

    R = `rewards` and V = the critic's `values`, both [B, T] per token; γ = `gamma` and λ = `lam`, both in [0, 1]. t + 1 is the
    next token of `mask` [B, T], so tokens that the policy did not write (tool output) are skipped and get 0. The critic's
    target is A + V. Source: arXiv 1506.02438 eq. 16. Limits: λ = γ = 1 gives reward-to-go − V; λ = 0 gives δ.
    """
    assert rewards.shape == values.shape == mask.shape and mask.dtype == torch.bool
    rewards, values = torch.where(mask, rewards, 0.0), torch.where(mask, values, 0.0)
    next_value, running = values.new_zeros(values.shape[0]), values.new_zeros(values.shape[0])
    out = torch.zeros_like(values)
    for t in reversed(range(values.shape[1])):
        here = mask[:, t]
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        running = torch.where(here, delta + gamma * lam * running, running)
        next_value = torch.where(here, values[:, t], next_value)
        out[:, t] = torch.where(here, running, 0.0)
    return out
