"""Estimators of advantages from one scalar reward per response.

A group estimator is `(rewards [P, G], **inputs) -> [P, G]`: P prompts with G responses each. Every token of a response gets the
advantage of the response. An estimator's `.needs` names its further inputs: lengths [P, G] in tokens, and greedy [P], the reward
of each prompt's greedy response. Some need the rewards of the global batch and say so. `algos.returns` has advantages by token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

STD_FLOOR = 1e-6
"""Number added to a standard deviation of rewards, so that equal rewards give 0, not 0/0. verl and SkyRL add 1e-6, TRL 1e-4."""


def advantage(*needs: str) -> Callable:
    """Return a decorator that stores, as `.needs`, the names of an advantage estimator's inputs other than the rewards."""

    def mark(function: Callable) -> Callable:
        marked: Any = function
        marked.needs = needs
        return marked

    return mark


@advantage()
def reinforce(rewards: Tensor) -> Tensor:
    """REINFORCE without a baseline: the advantages are the rewards. Source: Williams 1992; NeMo-RL's raw_reward, not whitened."""
    return rewards


@advantage()
def dr_grpo(rewards: Tensor) -> Tensor:
    """Dr. GRPO: the reward less the mean reward of the prompt's responses, A = R − mean_g R.

    R = `rewards` [P, G], with G responses to each of P prompts; mean_g averages over the G responses to one prompt. Source:
    Dr. GRPO, arXiv 2503.20783 section 3.2. Limits: equal rewards or a single response give 0.
    """
    return rewards - rewards.mean(-1, keepdim=True)


@advantage()
def grpo(rewards: Tensor) -> Tensor:
    """GRPO: the reward standardised among the responses to its prompt, A = (R − mean_g R)/(std_g R + 1e-6).

    R = `rewards` [P, G]; mean_g and std_g (over G − 1) are those of the G responses to one of P prompts. Source: arXiv 2402.03300
    section 4.1.2. Limits: equal rewards or a single response give 0.
    """
    return dr_grpo(rewards) / (_std(rewards) + STD_FLOOR)


@advantage()
def grpo_batch_std(rewards: Tensor) -> Tensor:
    """GRPO with the standard deviation of the whole batch: A = (R − mean_g R)/(std R + 1e-6).

    R = `rewards` [P, G] of the global batch; mean_g averages over the G responses to one of P prompts. std R is the standard
    deviation (over P·G − 1) of all rewards. Source: Lite PPO, arXiv 2508.08221; TRL's scale_rewards=batch. Limits: equal rewards
    within each prompt give 0.
    """
    return dr_grpo(rewards) / (_std(rewards.view(1, -1)) + STD_FLOOR)


@advantage()
def gpg(rewards: Tensor) -> Tensor:
    """Group policy gradient: A = (N/N_informative)·(R − mean_g R).

    R = `rewards` [P, G] of the global batch; mean_g averages over the G responses to one of P prompts. N counts all responses,
    and N_informative those to prompts whose rewards are not all equal. The factor makes up for the responses that give no
    gradient. Source: GPG, arXiv 2504.02546. Limits: 0 if no prompt has two different rewards; `dr_grpo` if every prompt has.
    """
    informative = rewards.shape[-1] * (rewards.amin(-1) < rewards.amax(-1)).sum()
    return dr_grpo(rewards) * rewards.numel() / informative.clamp(min=1)


@advantage()
def pass_at_k(rewards: Tensor, *, std: bool) -> Tensor:
    """Advantage of the best response to a prompt: A_i = max_j R_j − max_{j≠i} R_j, divided by std_g R + 1e-6 if `std` is true.

    R = `rewards` [P, G]; maxima and std_g (over G − 1) are those of the G responses to one of P prompts. The best response gets
    its lead over the second best, and the others get 0. The gradient is that of E[max R of G responses], which for rewards in
    {0, 1} is the pass rate of G attempts. Source: arXiv 2503.19595 section 3; the division by std_g is verl's. Limits: a tie for
    the best, or a single response, gives 0.
    """
    best, second = torch.nn.functional.pad(rewards, (0, 1), value=-torch.inf).topk(2).values[..., None].unbind(-2)
    lead = torch.where(second.isfinite() & (rewards == best), best - second, 0.0)
    return lead / (_std(rewards) + STD_FLOOR) if std else lead


@advantage()
def rloo(rewards: Tensor) -> Tensor:
    """RLOO, with the prompt's other responses as baseline: A_i = R_i − mean_{j≠i} R_j = n/(n − 1)·(R_i − mean_g R).

    R = `rewards` [P, G]; j runs over the n = G responses to the prompt of response i. The baseline does not contain R_i, so it
    stays unbiased under importance weights. Source: arXiv 2402.14740 section 3.3. Limits: a single response gives 0.
    """
    n = rewards.shape[-1]
    return dr_grpo(rewards) * n / max(n - 1, 1)


@advantage()
def maxrl(rewards: Tensor) -> Tensor:
    """Maximum-likelihood RL: A = (R − mean_g R)/mean_g R, or 0 where mean_g R is not positive.

    R = `rewards` [P, G], all ≥ 0; mean_g averages over the G responses to one of P prompts. Source: arXiv 2602.02710. Limits:
    equal rewards give 0; with rewards in {0, 1} and pass rate p, a success gets (1 − p)/p and a failure −1.
    """
    mean = rewards.mean(-1, keepdim=True)
    return torch.where(mean > 0, dr_grpo(rewards) / torch.where(mean > 0, mean, 1.0), 0.0)


@advantage("greedy")
def remax(rewards: Tensor, *, greedy: Tensor) -> Tensor:
    """ReMax: the reward of the greedy response is the baseline, A = R − R_greedy.

    R = `rewards` [P, G], with G responses to each of P prompts. R_greedy = `greedy` [P] is the reward of each prompt's
    greedy response. Source: arXiv 2310.10505 algorithm 1.
    """
    assert greedy.shape == rewards.shape[:1]
    return rewards - greedy[:, None]


@advantage("lengths")
def opo(rewards: Tensor, *, lengths: Tensor) -> Tensor:
    """OPO: the baseline is the prompt's mean reward weighted by response length, A = R − Σ_g n·R/Σ_g n.

    R = `rewards` and n = `lengths` in tokens, both [P, G]; Σ_g sums over the G responses to one of P prompts. Source: arXiv
    2505.23585 (the variance-optimal baseline when |∇log π|² grows with the length). Limits: equal lengths give `dr_grpo`.
    """
    n = lengths.to(rewards.dtype)
    return rewards - (n * rewards).sum(-1, keepdim=True) / n.sum(-1, keepdim=True).clamp(min=1)


@advantage("lengths")
def reinforce_pp(rewards: Tensor, *, lengths: Tensor) -> Tensor:
    """REINFORCE++: the reward whitened over all tokens of the global batch.

    A = (R − m)/(s + 1e-6),  m = Σ n·R/Σ n,  s² = Σ n·(R − m)²/(Σ n − 1)

    R = `rewards` and n = `lengths` in tokens, both [P, G] of the global batch; the sums run over all P·G responses. There is no
    discount and no KL penalty in the reward. Source: arXiv 2501.03262. Limits: equal rewards give 0.
    """
    return _whitened(rewards, lengths)


@advantage("lengths")
def reinforce_pp_baseline(rewards: Tensor, *, lengths: Tensor) -> Tensor:
    """REINFORCE++ with a baseline per prompt: A = (D − m)/(s + 1e-6) with D = R − mean_g R, whitened over all tokens.

    R = `rewards` [P, G] of the global batch; mean_g averages over the G responses to one of P prompts. m and s are the mean and
    standard deviation of D over all tokens, where a response of `lengths` [P, G] tokens counts once per token. Source: arXiv
    2501.03262, its baseline form. Limits: equal rewards within each prompt give 0.
    """
    return _whitened(dr_grpo(rewards), lengths)


def _std(rewards: Tensor) -> Tensor:
    """Standard deviation (over n − 1) of the n rewards of each of P prompts, [P, 1]; 0 for a single response."""
    return (dr_grpo(rewards).square().sum(-1, keepdim=True) / max(rewards.shape[-1] - 1, 1)).sqrt()


def _whitened(scores: Tensor, lengths: Tensor) -> Tensor:
    n = lengths.to(scores.dtype)
    mean = (n * scores).sum() / n.sum().clamp(min=1)
    variance = (n * (scores - mean).square()).sum() / (n.sum() - 1).clamp(min=1)
    return (scores - mean) / (variance.sqrt() + STD_FLOOR)
