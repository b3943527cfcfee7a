"""PPO's critic: rewards by token, the value loss, and the whitening of the advantages.

V_t is the value of the state before token t of a response: the prompt and the tokens up to t − 1. `algos.returns.gae` gives the
advantages unwhitened, so that the critic learns A + V.
"""

from __future__ import annotations

import torch
from torch import Tensor

VARIANCE_FLOOR = 1e-8
"""Added to the variance of the advantages before whitening, as verl, SkyRL and TRL do."""
RETURNS_FLOOR = 1e-5
"""Added to the variance of the returns, as verl does, so that equal returns have a finite explained variance."""


def token_rewards(rewards: Tensor, mask: Tensor, penalty: Tensor | None = None) -> Tensor:
    """A response's reward on its last token, less the penalty of each token, [B, T]; 0 off the mask.

    Where `rewards` [B], `mask` [B, T] bool, `penalty` [B, T] in units of the reward. Source: verl's token_level_rewards.
    Limits: the sum over the tokens is the reward less all penalties; 0 for a response without a token.
    """
    assert rewards.shape == mask.shape[:1] and mask.dtype == torch.bool
    last = mask & (mask.flip(-1).cumsum(-1).flip(-1) == 1)
    placed = torch.where(last, rewards[:, None], 0.0)
    return placed if penalty is None else placed - torch.where(mask, penalty, 0.0).to(placed.dtype)


def whiten(advantages: Tensor, mask: Tensor) -> Tensor:
    """Whitened advantages, (A − m)/√(s² + 1e-8), over the tokens of the global batch; 0 off the mask.

    Where A = `advantages`, m and s² (with n − 1) their mean and variance over `mask`, all [B, T]. Give the global batch.
    Source: verl's and SkyRL's masked_whiten, from TRL's PPO. Limits: equal advantages, one token or none give 0.
    """
    n = mask.sum()
    mean = torch.where(mask, advantages, 0.0).sum() / n.clamp(min=1)
    centred = torch.where(mask, advantages - mean, 0.0)
    return centred * torch.rsqrt(centred.square().sum() / (n - 1).clamp(min=1) + VARIANCE_FLOOR)


def value_loss(values: Tensor, old: Tensor, returns: Tensor, cliprange: float | None) -> tuple[Tensor, Tensor]:
    """The clipped value loss of each token, [B, T], and a mask of the tokens whose clipped square is the larger, [B, T].

    ½·max((V − R)², (clip(V, V_old − c, V_old + c) − R)²)

    Where V = `values`, V_old = `old`, the values when the responses were taken, R = `returns`, all [B, T]; c = `cliprange`, None
    for no clip. Source: verl's compute_value_loss, from TRL's PPO; SkyRL's ppo_critic_loss. Gradient: V − R, or 0 where the
    clipped square is the larger. Limits: c → ∞ and V = V_old give ½(V − R)².
    """
    plain = (values - returns).square()
    if cliprange is None:
        return 0.5 * plain, torch.zeros_like(plain, dtype=torch.bool)
    clipped = (torch.clamp(values, old - cliprange, old + cliprange) - returns).square()
    return 0.5 * torch.maximum(plain, clipped), clipped > plain


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    """Explained variance of the returns, 1 − var(R − V)/(var R + 1e-5), over the tokens of `mask`; NaN for fewer than two.

    Where V = `values` and R = `returns`, [B, T], variances with n − 1. Source: verl's critic/vf_explained_var. Limits:
    V = R + c gives 1, a constant V 0 (up to the 1e-5).
    """
    values, returns = values[mask].double(), returns[mask].double()
    if len(values) < 2:
        return values.new_tensor(torch.nan)
    return 1 - (returns - values).var() / (returns.var() + RETURNS_FLOOR)
