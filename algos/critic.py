"""PPO's critic: the reward of each token, the value loss, and the whitening of the advantages.

V_t is the critic's value of the state before token t of a response: the prompt and the tokens up to t − 1. `algos.returns.gae`
gives the advantages A unwhitened, so that the critic learns A + V.
"""

from __future__ import annotations

import torch
from torch import Tensor

VARIANCE_FLOOR = 1e-8
"""Number added to the variance of the advantages before whitening, as verl, SkyRL and TRL do."""
RETURNS_FLOOR = 1e-5
"""Number added to the variance of the returns, as verl does, so that equal returns have a finite explained variance."""


def token_rewards(rewards: Tensor, mask: Tensor, penalty: Tensor | None = None) -> Tensor:
    """The reward of each token, [B, T]: the response's reward at its last token, less each token's penalty; 0 off the mask.

    `rewards` [B] has one reward per response, `mask` [B, T] bool is True on response tokens, and `penalty` [B, T] is in units of
    the reward. Source: verl's token_level_rewards. Limits: the sum over a response is its reward less all its penalties.
    """
    assert rewards.shape == mask.shape[:1] and mask.dtype == torch.bool
    last = mask & (mask.flip(-1).cumsum(-1).flip(-1) == 1)
    placed = torch.where(last, rewards[:, None], 0.0)
    return placed if penalty is None else placed - torch.where(mask, penalty, 0.0).to(placed.dtype)


def whiten(advantages: Tensor, mask: Tensor) -> Tensor:
    """Advantages whitened over the tokens of the global batch, (A − m)/√(s² + 1e-8), [B, T]; 0 off the mask.

    A = `advantages` [B, T] of the global batch; m and s² (over n − 1) are their mean and variance over the n tokens of `mask`.
    Source: verl's and SkyRL's masked_whiten, from TRL's PPO. Limits: equal advantages, one token or none give 0.
    """
    n = mask.sum()
    mean = torch.where(mask, advantages, 0.0).sum() / n.clamp(min=1)
    centred = torch.where(mask, advantages - mean, 0.0)
    return centred * torch.rsqrt(centred.square().sum() / (n - 1).clamp(min=1) + VARIANCE_FLOOR)


def value_loss(values: Tensor, old: Tensor, returns: Tensor, cliprange: float | None) -> tuple[Tensor, Tensor]:
    """The critic's clipped value loss of each token, [B, T], and a bool mask [B, T] of the tokens where the clip acts.

    ½·max((V − R)², (clip(V, V_old − c, V_old + c) − R)²)

    V = `values`, V_old = `old` (the values when the batch was taken), R = `returns`, all [B, T]; c = `cliprange`, None for no
    clip. The clip acts where the second square is the larger; the gradient is 0 there, else V − R. Source: verl's
    compute_value_loss, from TRL's PPO; SkyRL's ppo_critic_loss. Limits: c → ∞, or V = V_old, gives ½(V − R)².
    """
    plain = (values - returns).square()
    if cliprange is None:
        return 0.5 * plain, torch.zeros_like(plain, dtype=torch.bool)
    clipped = (torch.clamp(values, old - cliprange, old + cliprange) - returns).square()
    return 0.5 * torch.maximum(plain, clipped), clipped > plain


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    """Share of the variance of the returns that the critic explains, 1 − var(R − V)/(var R + 1e-5); a scalar.

    R = `returns` and V = `values` by the critic, both [B, T]; variances (over n − 1) are over the n tokens of `mask`. Source:
    verl's critic/vf_explained_var. Limits: V = R + constant gives 1, a constant V gives 0 (up to the 1e-5), and n < 2 gives NaN.
    """
    values, returns = values[mask].double(), returns[mask].double()
    if len(values) < 2:
        return values.new_tensor(torch.nan)
    return 1 - (returns - values).var() / (returns.var() + RETURNS_FLOOR)
