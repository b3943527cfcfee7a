"""Functions of prompt numbers: the expected probability of the responses to a prompt, and consecutive numbering of prompts."""

from __future__ import annotations

import torch
from torch import Tensor


def log_expectation(log_mu: Tensor, present: Tensor, prompt: Tensor) -> Tensor:
    """The log of GEPO's expectation of μ̄ over the responses to the same prompt, log Ê[μ̄], for each response, [B] in nats.

    Ê[μ̄] = Σ_j μ̄_j²/Σ_j μ̄_j over the responses j to the prompt that are `present`

    log μ̄ = `log_mu` [B] is the mean of the sampler's log μ over a response's tokens, `present` [B] bool is False for responses
    without a token, and `prompt` [B] numbers the prompts. A response's weight in GEPO is π̄/Ê[μ̄], with π̄ the geometric mean of
    the trainer's π: biased, and not 1 where π = μ. Source: arXiv 2508.17850 eq. 2 and 3, with the geometric mean of its code
    (HanlardResearch/HeteroRL_GEPO). Limits: equal μ̄_j, or a prompt of one response, give log μ̄; NaN without a present response.
    """
    assert log_mu.shape == present.shape == prompt.shape and present.dtype == torch.bool
    group = consecutive(prompt)
    largest = torch.full_like(log_mu, -torch.inf).scatter_reduce(0, group, log_mu.where(present, -torch.inf), "amax")[group]
    scaled = torch.where(present, (log_mu - largest).exp(), 0.0)  # the group's largest is 1, so neither sum is 0
    total, squares = (torch.zeros_like(scaled).scatter_add(0, group, part)[group] for part in (scaled, scaled.square()))
    return largest + squares.log() - total.log()


def consecutive(ids: Tensor) -> Tensor:
    """Return each id's rank, from 0, among the distinct `ids` [B]. Unlike Tensor.unique, this does not wait for the device."""
    ranked, order = ids.sort()
    number = (ranked.diff(prepend=ranked[:1]) != 0).cumsum(0)
    return torch.empty_like(number).scatter(0, order, number)
