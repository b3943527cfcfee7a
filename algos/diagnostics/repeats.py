"""Tests whether responses repeat their own tokens as often as the trainer says; the test needs π(S) at each token.

S is the set of tokens that the response already has. It is known before the next token x is drawn, so

    E_μ[ρ·(1{x ∈ S} − π(S)) | prefix] = Σ_{x ∈ S} π(x) − π(S)·Σ_x π(x) = 0,    ρ = π/μ, π(S) = Σ_{x ∈ S} π(x)

holds for any two policies if μ is what sampled. A sampler q ≠ μ near π gives q(S) − π(S). That is what a penalty of presence,
frequency or repetition changes: presence_penalty=p gives q(S) = π(S)/(π(S) + (1 − π(S))·e^p).
Source: the law of change of measure, applied to the function 1{x ∈ S} − π(S).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from algos.diagnostics.pairs import LogpPairs
from algos.diagnostics.surprise import deviate_of_sum


def repeated(tokens: Tensor) -> Tensor:
    """Whether each token is in its response already, [B, T]. tokens: ids [B, T]."""
    ascending, order = tokens.sort(dim=1, stable=True)
    again = torch.zeros_like(tokens, dtype=torch.bool)
    again[:, 1:] = ascending[:, 1:] == ascending[:, :-1]
    return torch.zeros_like(again).scatter(1, order, again)


def repeats(pairs: LogpPairs, tokens: Tensor | None = None, repeat_prob: Tensor | None = None) -> dict[str, float]:
    """The mean over tokens of s = ρ·(1{x ∈ S} − π(S)), and its normal deviate z.

        z = Σ s/√(max(Σ s², Σ ρ²·π(S)·(1 − π(S))))

    Both sums estimate the variance of Σ s. The second one is that of π. The first is far too small if repeats are rare and none
    was drawn, and the second if rare repeats were drawn.
    tokens: ids [B, T]. repeat_prob: π_old(S) [B, T], by the pass that gave logp_old. S holds all earlier tokens of the response,
    whether they are trained on or not. excess: negative where the response repeats itself less often than the policy says.
    expected: the mean π(S). NaN without both columns.
    """
    if tokens is None or repeat_prob is None or not len(pairs):
        return dict.fromkeys(("repeats/excess", "repeats/z", "repeats/expected"), math.nan)
    expected = repeat_prob.detach().cpu()[pairs.mask].double()
    s = pairs.l.exp() * (repeated(tokens.cpu())[pairs.mask].double() - expected)
    variance = float((pairs.rho.square() * expected * (1 - expected)).sum())
    return {
        "repeats/excess": float(s.mean()),
        "repeats/z": deviate_of_sum(s, variance),
        "repeats/expected": float(expected.mean()),
    }
