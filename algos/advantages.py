"""Advantages from rewards.

A group estimator is `(rewards [P, G], *, kept, **inputs) -> [P, G]`: P prompts with G responses each; every token of a
response gets its advantage. `kept` [P, G] bool (None: all) says which responses a correction left in: the others enter
no baseline and get advantage 0. `.needs` names the further inputs: lengths [P, G] in tokens, greedy [P] (the reward of
the greedy response); `gae` works on tokens instead and needs mask and values [B, T]. The rewards passed in must be
those of the whole global batch for the estimators that say so.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

STD_FLOOR = 1e-6
"""Added to a standard deviation (TRL's and verl's value): a group with equal rewards has advantage 0, not 0/0."""


def advantage(*needs: str) -> Callable:
    """Name the inputs an estimator needs beyond the rewards, so that a run provides those and no others."""

    def mark(function: Callable) -> Callable:
        function.needs = needs
        return function

    return mark


@advantage()
def dr_grpo(rewards: Tensor, *, kept: Tensor | None = None) -> Tensor:
    """Group mean as baseline: A = R − mean_g R.

    Where R = `rewards`, mean_g over the kept responses of the prompt. Source: Dr. GRPO, arXiv 2503.20783 section 3.2.
    Limits: equal rewards or a single response give 0.
    """
    kept = _all_if_none(kept, rewards)
    return torch.where(kept, rewards - _mean(rewards, kept), 0.0)


@advantage()
def grpo(rewards: Tensor, *, kept: Tensor | None = None) -> Tensor:
    """Group-standardised reward: A = (R − mean_g R)/(std_g R + 1e-6), std with n − 1.

    Where R = `rewards`, mean and std over the n kept responses of the prompt. Source: arXiv 2402.03300 section 4.1.2.
    Limits: equal rewards or a single response give 0.
    """
    kept = _all_if_none(kept, rewards)
    centred = dr_grpo(rewards, kept=kept)
    variance = centred.square().sum(-1, keepdim=True) / (kept.sum(-1, keepdim=True) - 1).clamp(min=1)
    return centred / (variance.sqrt() + STD_FLOOR)


@advantage()
def rloo(rewards: Tensor, *, kept: Tensor | None = None) -> Tensor:
    """Leave-one-out baseline: A_i = R_i − mean_{j≠i} R_j = n/(n − 1)·(R_i − mean_g R).

    Where R = `rewards`, n kept responses of the prompt. Source: arXiv 2402.14740 section 3.3. The baseline does not
    contain the response itself, so importance weights leave it unbiased. Limits: a single response gives 0.
    """
    n = _all_if_none(kept, rewards).sum(-1, keepdim=True)
    return dr_grpo(rewards, kept=kept) * n / (n - 1).clamp(min=1)


@advantage()
def maxrl(rewards: Tensor, *, kept: Tensor | None = None) -> Tensor:
    """Maximum-likelihood RL: A = (R − mean_g R)/mean_g R, 0 where the mean is not positive.

    Where R = `rewards` ≥ 0, mean over the kept responses of the prompt. Source: arXiv 2602.02710. Limits: equal rewards
    give 0; with rewards in {0, 1} and pass rate p, a success has (1 − p)/p and a failure −1.
    """
    kept = _all_if_none(kept, rewards)
    mean = _mean(rewards, kept)
    return torch.where(mean > 0, dr_grpo(rewards, kept=kept) / torch.where(mean > 0, mean, 1.0), 0.0)


@advantage("greedy")
def remax(rewards: Tensor, *, greedy: Tensor, kept: Tensor | None = None) -> Tensor:
    """Greedy baseline: A = R − R_greedy.

    Where R = `rewards`, R_greedy = `greedy` [P], the reward of the prompt's greedy response. Source: arXiv 2310.10505
    algorithm 1. No other response enters the baseline.
    """
    assert greedy.shape == rewards.shape[:1]
    return torch.where(_all_if_none(kept, rewards), rewards - greedy[:, None], 0.0)


@advantage("lengths")
def opo(rewards: Tensor, *, lengths: Tensor, kept: Tensor | None = None) -> Tensor:
    """Length-weighted baseline: A = R − Σ_g n·R/Σ_g n.

    Where R = `rewards`, n = `lengths` [P, G] in tokens, sums over the kept responses of the prompt. Source: arXiv
    2505.23585 (the variance-optimal baseline when |∇log π|² grows with the length). Limits: equal lengths give
    `dr_grpo`.
    """
    kept = _all_if_none(kept, rewards)
    return torch.where(kept, rewards - _mean(rewards, kept, lengths), 0.0)


@advantage("lengths")
def reinforce_pp(rewards: Tensor, *, lengths: Tensor, kept: Tensor | None = None) -> Tensor:
    """REINFORCE++: the reward whitened over all tokens of the global batch.

    A = (R − m)/(s + 1e-6),  m = Σ n·R/Σ n,  s² = Σ n·(R − m)²/(Σ n − 1)

    Where R = `rewards`, n = `lengths` [P, G] in tokens; sums over all kept responses of the batch given, which must be
    the global one. Undiscounted and without a KL reward. Source: arXiv 2501.03262. Limits: equal rewards give 0.
    """
    return _whitened(rewards, _all_if_none(kept, rewards), lengths)


@advantage("lengths")
def reinforce_pp_baseline(rewards: Tensor, *, lengths: Tensor, kept: Tensor | None = None) -> Tensor:
    """REINFORCE++ with a group baseline: R − mean_g R, then whitened over all tokens of the global batch as
    `reinforce_pp`.

    Source: arXiv 2501.03262, its baseline form. Limits: equal rewards in each group give 0.
    """
    kept = _all_if_none(kept, rewards)
    return _whitened(dr_grpo(rewards, kept=kept), kept, lengths)


@advantage("mask", "values")
def gae(rewards: Tensor, *, mask: Tensor, values: Tensor, gamma: float, lam: float) -> Tensor:
    """Generalised advantage estimation on the tokens of each response.

    A_t = Σ_k (γλ)^k·δ_{t+k},  δ_t = R_t + γ·V_{t+1} − V_t,  V = 0 after the last token

    Where R = `rewards` [B, T] per token, V = `values` [B, T], γ = `gamma`, λ = `lam` in [0, 1]; t + 1 is the next token
    of `mask` [B, T], so tokens that the policy did not write (tool output) are skipped. The value target is A + V.
    Source: arXiv 1506.02438 eq. 16. Limits: λ = γ = 1 gives reward-to-go − V; λ = 0 gives δ.
    Raises ValueError on γ or λ outside [0, 1].
    """
    for key, value in {"gamma": gamma, "lam": lam}.items():
        if not 0 <= value <= 1:
            raise ValueError(f"advantage.{key}={value}: must be in [0, 1]")
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


def _all_if_none(kept: Tensor | None, rewards: Tensor) -> Tensor:
    assert rewards.ndim == 2 and (kept is None or (kept.shape == rewards.shape and kept.dtype == torch.bool))
    return torch.ones_like(rewards, dtype=torch.bool) if kept is None else kept


def _mean(rewards: Tensor, kept: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Mean over the kept responses of each prompt, weighted by their lengths if given; 0 without any."""
    weight = kept.to(rewards.dtype) if lengths is None else torch.where(kept, lengths, 0).to(rewards.dtype)
    return torch.where(kept, weight * rewards, 0.0).sum(-1, keepdim=True) / weight.sum(-1, keepdim=True).clamp(min=1)


def _whitened(scores: Tensor, kept: Tensor, lengths: Tensor) -> Tensor:
    n = torch.where(kept, lengths, 0).to(scores.dtype)
    scores = torch.where(kept, scores, 0.0)
    mean = (n * scores).sum() / n.sum().clamp(min=1)
    variance = (n * (scores - mean).square()).sum() / (n.sum() - 1).clamp(min=1)
    return torch.where(kept, (scores - mean) / (variance.sqrt() + STD_FLOOR), 0.0)
