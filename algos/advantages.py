"""Advantages from rewards.

A group estimator is `(rewards [P, G], *, kept, **inputs) -> [P, G]`: P prompts with G responses each; every token of a
response gets its advantage. `kept` [P, G] bool (None: all) says which responses a correction left in: the others enter
no baseline and get advantage 0. `.needs` names the further inputs: lengths [P, G] in tokens, greedy [P] (the reward of
the greedy response), components [P, G, K]. Three estimators are finer than a response, each with shapes of its own:
`gae` and `optimal_token_baseline` by token, `gigpo` by turn. The rewards passed in must be those of the whole global
batch for the estimators that say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

STD_FLOOR = 1e-6
"""Added to a standard deviation (verl's and SkyRL's value; TRL's is 1e-4): a group of equal rewards has advantage 0, not 0/0."""


def advantage(*needs: str) -> Callable:
    """Name the inputs an estimator needs beyond the rewards, so that a run provides those and no others."""

    def mark(function: Callable) -> Callable:
        function.needs = needs
        return function

    return mark


@advantage()
def reinforce(rewards: Tensor, *, kept: Tensor | None = None) -> Tensor:
    """No baseline: A = R.

    Where R = `rewards`. Source: Williams 1992, doi 10.1007/BF00992696; NeMo-RL's raw_reward without its whitening.
    """
    return torch.where(_all_if_none(kept, rewards), rewards, 0.0)


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
    return dr_grpo(rewards, kept=kept) / (_std(rewards, _all_if_none(kept, rewards)) + STD_FLOOR)


@advantage()
def grpo_batch_std(rewards: Tensor, *, kept: Tensor | None = None) -> Tensor:
    """Group mean as baseline, the std of the whole batch as scale: A = (R − mean_g R)/(std R + 1e-6), std with n − 1.

    Where R = `rewards`, mean over the kept responses of the prompt, std over all kept responses of the batch given, which
    must be the global one. Source: Lite PPO, arXiv 2508.08221; TRL's scale_rewards=batch. Limits: equal rewards in each
    group give 0.
    """
    kept = _all_if_none(kept, rewards)
    return dr_grpo(rewards, kept=kept) / (_std(rewards.view(1, -1), kept.view(1, -1)) + STD_FLOOR)


@advantage()
def gpg(rewards: Tensor, *, kept: Tensor | None = None) -> Tensor:
    """Group policy gradient: A = (N/N_informative)·(R − mean_g R).

    Where R = `rewards`, mean over the kept responses of the prompt, N the kept responses of the batch given, which must
    be the global one, and N_informative those of prompts whose kept rewards are not all equal: the scale makes up for
    the responses that give no gradient. Source: GPG, arXiv 2504.02546. Limits: no two rewards of a prompt differ: 0;
    every prompt is informative: `dr_grpo`.
    """
    kept = _all_if_none(kept, rewards)
    lowest, highest = (torch.where(kept, rewards, end) for end in (torch.inf, -torch.inf))
    informative = kept & (lowest.amin(-1, keepdim=True) < highest.amax(-1, keepdim=True))
    return dr_grpo(rewards, kept=kept) * kept.sum() / informative.sum().clamp(min=1)


@advantage()
def pass_at_k(rewards: Tensor, *, std: bool, kept: Tensor | None = None) -> Tensor:
    """Leave-one-out advantage of the best of a group: A_i = max_j R_j − max_{j≠i} R_j, over std_g R + 1e-6 if `std`.

    Where R = `rewards`, maxima and std (with n − 1) over the n kept responses of the prompt: the best response gets its
    lead over the second best, the others 0. The gradient is that of E[max of n responses], the pass rate of n attempts
    for rewards in {0, 1}. Source: arXiv 2503.19595 section 3; std is verl's. Limits: a tie for the best, or a single
    response, gives 0.
    """
    kept = _all_if_none(kept, rewards)
    scores = torch.where(kept, rewards, -torch.inf)
    best, second = torch.nn.functional.pad(scores, (0, 1), value=-torch.inf).topk(2).values[..., None].unbind(-2)
    lead = torch.where(second.isfinite() & (scores == best), best - second, 0.0)
    return lead / (_std(rewards, kept) + STD_FLOOR) if std else lead


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


@advantage("components", "lengths")
def gdpo(
    rewards: Tensor, *, components: Tensor, lengths: Tensor, weights: Sequence[float], kept: Tensor | None = None
) -> Tensor:
    """Several rewards, each standardised in its group, so that none drowns another; their sum whitened over all tokens.

    A = (S − m)/(s + 1e-6),  S = Σ_k w_k·(R_k − mean_g R_k)/(std_g R_k + 1e-6)

    Where R_k = `components` [P, G, K], w = `weights`, one a component; m and s are the mean and std of S over the
    tokens of the batch given, which must be the global one, as in `reinforce_pp`, with `lengths` [P, G]; `rewards` [P,
    G] gives the shape only. Source: arXiv 2601.05242. Limits: one component with w = 1 is `grpo`, whitened.
    Raises ValueError unless there is a weight for each component.
    """
    if len(weights) != components.shape[-1]:
        raise ValueError(f"advantage.weights={list(weights)}: give {components.shape[-1]} numbers, one for each component")
    kept = _all_if_none(kept, rewards)
    total = sum(w * grpo(one, kept=kept) for w, one in zip(weights, components.unbind(-1), strict=True))
    return _whitened(total, kept, lengths)


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


@advantage("turns", "states")
def gigpo(rewards: Tensor, *, turns: Tensor, states: Tensor, gamma: float, weight: float, std: bool) -> Tensor:
    """Group in group: the advantage of an episode in its group, plus that of a turn among turns that met the same state.

    A_it = (R_i − mean_g R)/F + ω·(Q_it − mean_s Q)/F_s,  R_i = Σ_t r_it,  Q_it = Σ_{k ≥ 0} γ^k·r_{i,t+k}

    Where r = `rewards` [P, G, S] per turn, `turns` [P, G, S] bool says which turns took place, ω = `weight`, γ =
    `gamma`; mean_s is over the turns of the prompt's group that met the same state, by `states` [P, G, S], integers 0 ≤
    id < G·S; F is the std (with n − 1) plus 1e-6 if `std`, else 1. All tokens of a turn get its advantage. Source: arXiv
    2505.10978 section 4. Limits: ω = 0 is `grpo` (or `dr_grpo`) of the episodes; a state met once adds 0.
    Raises ValueError on γ outside [0, 1].
    """
    assert rewards.shape == turns.shape == states.shape and turns.dtype == torch.bool
    rewards = torch.where(turns, rewards, 0.0)
    episode = (grpo if std else dr_grpo)(rewards.sum(-1), kept=turns.any(-1))[..., None]
    flat = rewards.flatten(0, 1)
    to_go = gae(flat, mask=turns.flatten(0, 1), values=torch.zeros_like(flat), gamma=gamma, lam=1.0).view_as(rewards)
    n = _over_equal(torch.ones_like(rewards), states, turns).clamp(min=1)
    centred = to_go - _over_equal(to_go, states, turns) / n
    spread = (_over_equal(centred.square(), states, turns) / (n - 1).clamp(min=1)).sqrt() + STD_FLOOR if std else 1.0
    return torch.where(turns, episode + weight * centred / spread, 0.0)


def _all_if_none(kept: Tensor | None, rewards: Tensor) -> Tensor:
    assert rewards.ndim == 2 and (kept is None or (kept.shape == rewards.shape and kept.dtype == torch.bool))
    return torch.ones_like(rewards, dtype=torch.bool) if kept is None else kept


def _mean(rewards: Tensor, kept: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Mean over the kept responses of each prompt, weighted by their lengths if given; 0 without any."""
    weight = kept.to(rewards.dtype) if lengths is None else torch.where(kept, lengths, 0).to(rewards.dtype)
    return torch.where(kept, weight * rewards, 0.0).sum(-1, keepdim=True) / weight.sum(-1, keepdim=True).clamp(min=1)


def _std(rewards: Tensor, kept: Tensor) -> Tensor:
    """Over the n kept responses of each prompt, with n − 1, [P, 1]; 0 for one response or none."""
    squares = dr_grpo(rewards, kept=kept).square().sum(-1, keepdim=True)
    return (squares / (kept.sum(-1, keepdim=True) - 1).clamp(min=1)).sqrt()


def _over_equal(values: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    """Sum of the values [P, G, S] of a prompt whose ids are equal, at each of them; over `mask`, 0 off it."""
    ids, values = torch.where(mask, ids, 0).flatten(1), torch.where(mask, values, 0.0).flatten(1)
    summed = torch.zeros_like(values).scatter_add(1, ids, values).gather(1, ids)
    return torch.where(mask, summed.view_as(mask), 0.0)


def _whitened(scores: Tensor, kept: Tensor, lengths: Tensor) -> Tensor:
    n = torch.where(kept, lengths, 0).to(scores.dtype)
    scores = torch.where(kept, scores, 0.0)
    mean = (n * scores).sum() / n.sum().clamp(min=1)
    variance = (n * (scores - mean).square()).sum() / (n.sum() - 1).clamp(min=1)
    return torch.where(kept, (scores - mean) / (variance.sqrt() + STD_FLOOR), 0.0)
