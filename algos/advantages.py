"""Estimators of advantages from one scalar reward per response.

A group estimator is `(rewards [P, G], **inputs) -> [P, G]`: P prompts with G responses each. Every token of a response gets the
advantage of the response. `.needs` names the further inputs: lengths [P, G] in tokens, greedy [P] (the reward of the greedy
response). Some estimators need the rewards of the whole global batch and say so. `algos.returns` has the estimator by token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

STD_FLOOR = 1e-6
"""Added to a standard deviation, so that equal rewards give advantage 0 and not 0/0. verl and SkyRL: 1e-6, TRL: 1e-4."""


def advantage(*needs: str) -> Callable:
    """Return a decorator that names the inputs of an estimator beyond the rewards, so that a run provides only these."""

    def mark(function: Callable) -> Callable:
        marked: Any = function
        marked.needs = needs
        return marked

    return mark


@advantage()
def reinforce(rewards: Tensor) -> Tensor:
    """REINFORCE without a baseline, A = `rewards`. Source: Williams 1992; NeMo-RL's raw_reward without its whitening."""
    return rewards


@advantage()
def dr_grpo(rewards: Tensor) -> Tensor:
    """Dr. GRPO: the reward less the group mean, A = R − mean_g R.

    Where R = `rewards`, mean_g over the responses of the prompt. Source: Dr. GRPO, arXiv 2503.20783 section 3.2.
    Limits: equal rewards or a single response give 0.
    """
    return rewards - rewards.mean(-1, keepdim=True)


@advantage()
def grpo(rewards: Tensor) -> Tensor:
    """GRPO: the reward standardised within its group, A = (R − mean_g R)/(std_g R + 1e-6), std with n − 1.

    Where R = `rewards`, mean and std over the n responses of the prompt. Source: arXiv 2402.03300 section 4.1.2.
    Limits: equal rewards or a single response give 0.
    """
    return dr_grpo(rewards) / (_std(rewards) + STD_FLOOR)


@advantage()
def grpo_batch_std(rewards: Tensor) -> Tensor:
    """GRPO with the std of the whole batch: A = (R − mean_g R)/(std R + 1e-6), std with n − 1.

    Where R = `rewards`, mean over the responses of the prompt, std over all responses of the given batch. This must be the global
    batch. Source: Lite PPO, arXiv 2508.08221; TRL's scale_rewards=batch. Limits: equal rewards in each group give 0.
    """
    return dr_grpo(rewards) / (_std(rewards.view(1, -1)) + STD_FLOOR)


@advantage()
def gpg(rewards: Tensor) -> Tensor:
    """Group policy gradient: A = (N/N_informative)·(R − mean_g R).

    Where R = `rewards`, mean over the responses of the prompt. N counts the responses of the given batch, which must be the
    global one. N_informative counts those of prompts whose rewards are not all equal. The scale makes up for the responses that
    give no gradient. Source: GPG, arXiv 2504.02546. Limits: 0 if no two rewards of a prompt differ; `dr_grpo` if every prompt is
    informative.
    """
    informative = rewards.shape[-1] * (rewards.amin(-1) < rewards.amax(-1)).sum()
    return dr_grpo(rewards) * rewards.numel() / informative.clamp(min=1)


@advantage()
def pass_at_k(rewards: Tensor, *, std: bool) -> Tensor:
    """Leave-one-out advantage of the best of a group: A_i = max_j R_j − max_{j≠i} R_j, over std_g R + 1e-6 if `std`.

    Where R = `rewards`, maxima and std (with n − 1) over the n responses of the prompt. The best response gets its lead over the
    second best, the others get 0. The gradient is that of E[max of n responses]. For rewards in {0, 1} this is the pass rate of n
    attempts. Source: arXiv 2503.19595 section 3; the division by std is verl's. Limits: a tie for the best, or a single response,
    gives 0.
    """
    best, second = torch.nn.functional.pad(rewards, (0, 1), value=-torch.inf).topk(2).values[..., None].unbind(-2)
    lead = torch.where(second.isfinite() & (rewards == best), best - second, 0.0)
    return lead / (_std(rewards) + STD_FLOOR) if std else lead


@advantage()
def rloo(rewards: Tensor) -> Tensor:
    """Leave-one-out baseline: A_i = R_i − mean_{j≠i} R_j = n/(n − 1)·(R_i − mean_g R).

    Where R = `rewards`, n responses of the prompt. Source: arXiv 2402.14740 section 3.3. The baseline does not
    contain the response itself, so importance weights leave it unbiased. Limits: a single response gives 0.
    """
    n = rewards.shape[-1]
    return dr_grpo(rewards) * n / max(n - 1, 1)


@advantage()
def maxrl(rewards: Tensor) -> Tensor:
    """Maximum-likelihood RL: A = (R − mean_g R)/mean_g R, 0 where the mean is not positive.

    Where R = `rewards` ≥ 0, mean over the responses of the prompt. Source: arXiv 2602.02710. Limits: equal rewards
    give 0; with rewards in {0, 1} and pass rate p, a success has (1 − p)/p and a failure −1.
    """
    mean = rewards.mean(-1, keepdim=True)
    return torch.where(mean > 0, dr_grpo(rewards) / torch.where(mean > 0, mean, 1.0), 0.0)


@advantage("greedy")
def remax(rewards: Tensor, *, greedy: Tensor) -> Tensor:
    """ReMax: the reward of the greedy response is the baseline, A = R − R_greedy.

    Where R = `rewards`, R_greedy = `greedy` [P], the reward of the prompt's greedy response. Source: arXiv 2310.10505 algorithm
    1. No other response enters the baseline.
    """
    assert greedy.shape == rewards.shape[:1]
    return rewards - greedy[:, None]


@advantage("lengths")
def opo(rewards: Tensor, *, lengths: Tensor) -> Tensor:
    """OPO: the baseline is the group's mean reward weighted by length, A = R − Σ_g n·R/Σ_g n.

    Where R = `rewards`, n = `lengths` [P, G] in tokens, sums over the responses of the prompt. Source: arXiv 2505.23585 (the
    variance-optimal baseline when |∇log π|² grows with the length). Limits: equal lengths give `dr_grpo`.
    """
    n = lengths.to(rewards.dtype)
    return rewards - (n * rewards).sum(-1, keepdim=True) / n.sum(-1, keepdim=True).clamp(min=1)


@advantage("lengths")
def reinforce_pp(rewards: Tensor, *, lengths: Tensor) -> Tensor:
    """REINFORCE++: the reward whitened over all tokens of the global batch.

    A = (R − m)/(s + 1e-6),  m = Σ n·R/Σ n,  s² = Σ n·(R − m)²/(Σ n − 1)

    Where R = `rewards`, n = `lengths` [P, G] in tokens; sums over all responses of the batch given, which must be
    the global one. Undiscounted and without a KL reward. Source: arXiv 2501.03262. Limits: equal rewards give 0.
    """
    return _whitened(rewards, lengths)


@advantage("lengths")
def reinforce_pp_baseline(rewards: Tensor, *, lengths: Tensor) -> Tensor:
    """REINFORCE++ with a group baseline: A = (D − m)/(s + 1e-6) with D = R − mean_g R, whitened over all tokens.

    Where R = `rewards`, mean_g over the responses of the prompt, m and s the mean and std of D, weighted by `lengths` [P, G].
    Source: arXiv 2501.03262, its baseline form. Limits: equal rewards in each group give 0.
    """
    return _whitened(dr_grpo(rewards), lengths)


def _std(rewards: Tensor) -> Tensor:
    """Standard deviation (with n − 1) of the n rewards of each prompt, [P, 1]; 0 for one response."""
    return (dr_grpo(rewards).square().sum(-1, keepdim=True) / max(rewards.shape[-1] - 1, 1)).sqrt()


def _whitened(scores: Tensor, lengths: Tensor) -> Tensor:
    n = lengths.to(scores.dtype)
    mean = (n * scores).sum() / n.sum().clamp(min=1)
    variance = (n * (scores - mean).square()).sum() / (n.sum() - 1).clamp(min=1)
    return (scores - mean) / (variance.sqrt() + STD_FLOOR)
