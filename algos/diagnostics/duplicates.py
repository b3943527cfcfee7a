"""Tests whether equal responses occur in a batch more often than sampling would produce them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from algos.diagnostics.pairs import LogpPairs, clustered_mean


def duplicates(pairs: LogpPairs) -> dict[str, float]:
    """Number of pairs of responses that agree in every log μ and log π, and the number to expect from the sampler's odds.

        expected = Σ_i (n_i − 1)·Π_t μ(x_t)/2      over the responses i

    where n_i counts the responses to the prompt of i, since each of the others repeats response i with probability Π_t μ(x_t).
    Prompts with first response tokens of the same log μ and log π, to the last bit, are taken to be one prompt.
    repeated: share of responses that repeat an earlier one. found, expected: numbers of pairs. z: normal deviate of
    found − expected, clustered over prompts; NaN with fewer than four prompts. Limits: a policy without entropy repeats itself,
    but `found` is then near `expected`. Without prompt numbers all responses count as answers to one prompt.
    """
    mask, prompt = pairs.mask, pairs.batch.prompt
    present = mask.any(-1)
    n = int(present.sum())
    if n < 2 or pairs.batch.logp_old is None:
        return {"duplicates/repeated": 0.0, "duplicates/found": 0.0, "duplicates/expected": 0.0, "duplicates/z": math.nan}
    columns = (pairs.batch.logp_rollout, pairs.batch.logp_old)
    mu, pi = (torch.where(mask, column.double(), 1.0)[present] for column in columns)
    _, row, counts = torch.cat([mu, pi], -1).unique(dim=0, return_inverse=True, return_counts=True)
    odds = pairs.by_response(pairs.mu)[present].clamp(max=0.0).exp()
    first = pairs.place == 0
    opening = torch.stack([pairs.mu[first], pairs.pi[first]], -1).unique(dim=0, return_inverse=True)[1]
    text = torch.zeros(n, dtype=torch.long) if prompt is None else _joined(prompt[present], opening)
    found, expected = (counts[row] - 1).double() / 2, odds * (torch.bincount(text)[text] - 1) / 2
    return {
        "duplicates/repeated": 1 - len(counts) / n,
        "duplicates/found": float(found.sum()),
        "duplicates/expected": float(expected.sum()),
        "duplicates/z": clustered_mean(found - expected, text).z(0.0),
    }


def _joined(prompt: Tensor, opening: Tensor) -> Tensor:
    """Number the prompts of n responses, [n]: an equal number in `prompt` or in `opening` means the same prompt.

    opening [n]: number of the pair (log μ, log π) of the first token. The smallest label spreads until no label changes.
    """
    label = prompt.unique(return_inverse=True)[1]
    while True:
        before = label
        for key in (opening, prompt.unique(return_inverse=True)[1]):
            least = torch.full((int(key.max()) + 1,), len(label)).scatter_reduce(0, key, label, "amin")
            label = least[key]
        if torch.equal(label, before):
            return label
