"""Advantages finer than a response, each with shapes of its own: `gae` and `optimal_token_baseline` by token, `gigpo` by turn.

An estimator by token is `(rewards [B, T], *, mask, values, **inputs) -> [B, T]`. `gae` is in the registry. The others are plain
functions: no run has Σ_v π_v² of the vocabulary, or the rewards and states of turns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from algos.advantages import STD_FLOOR, advantage, dr_grpo, grpo
from algos.parameters import Discount


@advantage("mask", "values")
def gae(rewards: Tensor, *, mask: Tensor, values: Tensor, gamma: Discount, lam: Discount) -> Tensor:
    """Generalised advantage estimation on the tokens of each response.

    A_t = Σ_k (γλ)^k·δ_{t+k},  δ_t = R_t + γ·V_{t+1} − V_t,  V = 0 after the last token

    Where R = `rewards` [B, T] per token, V = `values` [B, T], γ = `gamma`, λ = `lam` in [0, 1]; t + 1 is the next token
    of `mask` [B, T], so tokens that the policy did not write (tool output) are skipped. The value target is A + V.
    Source: arXiv 1506.02438 eq. 16. Limits: λ = γ = 1 gives reward-to-go − V; λ = 0 gives δ.
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


@advantage("mask", "logp_old", "pi_squared")
def optimal_token_baseline(
    rewards: Tensor, *, mask: Tensor, logp_old: Tensor, pi_squared: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Reward-to-go minus, at each token, the group's mean reward-to-go weighted by the energy spent so far.

    A_t = G_t − B_t,  B_t = Σ_g W_t·G_t/Σ_g W_t,  W_t = Σ_{j ≤ t} w_j²·(1 − 2π_old(j) + Σ_v π_old(v)²),  G_t = Σ_{j ≥ t} R_j

    Where R = `rewards` [P, G, T] per token, log π_old = `logp_old` and Σ_v π_old(v)², over the vocabulary, =
    `pi_squared`, all [P, G, T]; w = `weights`, the importance weight of each token, None for 1. t counts the tokens of
    `mask`, so tokens that the policy did not write are skipped; Σ_g is over the responses of the prompt that have a
    t-th token, and B_t = 0 where only one does. 1 − 2π + Σπ² is the squared norm of the gradient of log π by the logits.
    Source: arXiv 2602.07078. Limits: equal W gives the group's mean of G.
    """
    assert rewards.shape == mask.shape == logp_old.shape == pi_squared.shape and mask.dtype == torch.bool
    rewards = torch.where(mask, rewards, 0.0)
    to_go = rewards.flip(-1).cumsum(-1).flip(-1)
    energy = torch.where(mask, 1 - 2 * logp_old.exp() + pi_squared, 0.0)
    if weights is not None:
        energy = energy * torch.where(mask, weights, 0.0).square()
    spent = energy.cumsum(-1)
    number = mask.cumsum(-1) - 1  # of the token in its response
    total, several = _over_equal(spent, number, mask), _over_equal(torch.ones_like(spent), number, mask) > 1
    several &= total > 0
    baseline = torch.where(several, _over_equal(spent * to_go, number, mask) / torch.where(several, total, 1.0), 0.0)
    return torch.where(mask, to_go - baseline, 0.0)


@advantage("states")
def gigpo(rewards: Tensor, *, states: Tensor, gamma: Discount, weight: float, std: bool) -> Tensor:
    """Group in group: the advantage of an episode in its group, plus that of a turn among turns that met the same state.

    A_it = (R_i − mean_g R)/F + ω·(Q_it − mean_s Q)/F_s,  R_i = Σ_t r_it,  Q_it = Σ_{k ≥ 0} γ^k·r_{i,t+k}

    Where r = `rewards` [P, G, S] per turn, ω = `weight`, γ = `gamma`. mean_s is over the turns of the prompt's group that
    met the same state, by `states` [P, G, S], integers id < G·S, negative where no turn took place. F is the std (with
    n − 1) plus 1e-6 if `std`, else 1. All tokens of a turn get its advantage. Source: arXiv 2505.10978 section 4.
    Limits: ω = 0 is `grpo` (or `dr_grpo`) of the episodes; a state met once adds 0.
    """
    assert rewards.shape == states.shape and not states.is_floating_point()
    turns = states >= 0
    rewards = torch.where(turns, rewards, 0.0)
    episode = (grpo if std else dr_grpo)(rewards.sum(-1), kept=turns.any(-1))[..., None]
    flat = rewards.flatten(0, 1)
    to_go = gae(flat, mask=turns.flatten(0, 1), values=torch.zeros_like(flat), gamma=gamma, lam=1.0).view_as(rewards)
    n = _over_equal(torch.ones_like(rewards), states, turns).clamp(min=1)
    centred = to_go - _over_equal(to_go, states, turns) / n
    spread = (_over_equal(centred.square(), states, turns) / (n - 1).clamp(min=1)).sqrt() + STD_FLOOR if std else 1.0
    return torch.where(turns, episode + weight * centred / spread, 0.0)


def _over_equal(values: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    """Sum of the values [P, G, S] of a prompt whose ids are equal, at each of them; over `mask`, 0 off it."""
    ids, values = torch.where(mask, ids, 0).flatten(1), torch.where(mask, values, 0.0).flatten(1)
    summed = torch.zeros_like(values).scatter_add(1, ids, values).gather(1, ids)
    return torch.where(mask, summed.view_as(mask), 0.0)
