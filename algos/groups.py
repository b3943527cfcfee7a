"""What a group of responses to one prompt gives beyond its rewards: an importance weight, and a baseline.

They are plain functions: a correction sees responses and not groups, and no run has the norm of each response's gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from algos.ratios import bounded_exp


def group_expectation_weights(logp: Tensor, logp_rollout: Tensor, mask: Tensor) -> Tensor:
    """GEPO's importance weight of each response, [P, G].

    w_i = π(y_i)/Ê[μ],  Ê[μ] = Σ_j μ(y_j)²/Σ_j μ(y_j) over the G responses to a prompt

    Where log π = `logp` and log μ = `logp_rollout`, both [P, G, T] in nats, are summed over the tokens of `mask`. A response
    without a token is left out of Ê and has weight 0. Biased; its logarithm is bounded as every ratio's.
    Source: arXiv 2508.17850 eq. 2 and 3. Limits: equal μ(y_j), or G = 1, give π/μ.
    """
    assert logp.shape == logp_rollout.shape == mask.shape and mask.dtype == torch.bool and mask.ndim == 3
    present = mask.any(-1)
    log_p, log_q = (torch.where(mask, part, 0.0).sum(-1) for part in (logp, logp_rollout))
    log_q = torch.where(present, log_q, -torch.inf)
    expectation = (2 * log_q).logsumexp(-1, keepdim=True) - log_q.logsumexp(-1, keepdim=True)
    return torch.where(present, bounded_exp(torch.where(present, log_p - expectation, 0.0)), 0.0)


def off_policy_baseline(rewards: Tensor, *, weights: Tensor, norms: Tensor) -> Tensor:
    """VCPO's advantage of each response, [P, G]: its reward minus the baseline of least variance off policy.

    A_i = R_i − b,  b = Σ_j w_j²·n_j²·R_j/Σ_j w_j²·n_j² over the G responses to a prompt

    Where R = `rewards`, w = `weights`, the importance weight of each response, and n = `norms`, the Euclidean norm of its
    ∇ log π_θ, all [P, G]. b minimises Σ_j ‖w_j·(R_j − b)·∇ log π_θ(y_j)‖². It is 0 where every w·n is.
    Source: arXiv 2602.17616; its authors' code, mit-han-lab/vcpo. Limits: equal w·n give the group's mean.
    """
    assert rewards.shape == weights.shape == norms.shape and rewards.ndim == 2
    energy = (weights * norms).square()
    total = energy.sum(-1, keepdim=True)
    return rewards - torch.where(total > 0, (energy * rewards).sum(-1, keepdim=True) / torch.where(total > 0, total, 1.0), 0.0)
