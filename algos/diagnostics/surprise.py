"""Tests whether the sampled tokens surprise the trainer as much as its entropy H(π) says; the test needs H(π) at each token.

    E_μ[ρ·(−log π(x) − H(π)) | prefix] = Σ_x π(x)·(−log π(x)) − H(π)·Σ_x π(x) = 0

With ρ = π/μ, this holds for any two policies if μ is what sampled, as E[ρ] = 1 does (`identity`). The test also sees a sampler
q ≠ μ where μ is near π: E_q[π/μ] is then near 1 whatever q is, but the mean here is E_q[−log π] − H(π), of first order in q − μ.
Source: the law of change of measure, applied to the function −log π(x) − H(π).
"""

from __future__ import annotations

import math

from torch import Tensor

from algos.diagnostics.pairs import BASES, LogpPairs

RAREST = 15.0
"""Bound in nats on −log π of a sampled token. A vocabulary of 160,000 equally likely tokens has 12."""


def surprise(pairs: LogpPairs, entropy: Tensor | None = None) -> dict[str, float]:
    """The mean over tokens of s = ρ·(−log π − H), in nats, and its normal deviate z; ρ = π/μ, and H is the entropy of π.

    If μ sampled, the s of a response are martingale differences of mean 0. So V = Σ s² estimates the variance of Σ s, even where
    responses share a prompt. Under another sampler the s of a prompt are alike, and a clustered error would be too large.
    V lacks the tokens that were not drawn. If each token is the likeliest one, all s are alike, and Σ s/√V = −√n. Unseen tokens
    have |s| of at most b: `RAREST` where Σ s < 0, and the largest H where Σ s > 0, as −log π ≥ 0. Then, by Chernoff's bound,

        z²/2 = max of λ·|Σ s| − λ²·V/2 over 0 ≤ λ ≤ 1/b,    so z = Σ s/√V where |Σ s| ≤ V/b

    With V = 0 it is |Σ s|/b: unseen tokens expected |Σ s|/b times or more are all missed with a chance of at most e^(−|Σ s|/b).
    entropy: H(π_old) [B, T] in nats, by the pass that gave logp_old. excess: the mean of s, positive where the tokens are rarer
    than the policy says. expected: the mean H. NaN without entropies. base2_z, base10_z: Σ s/√(Σ s²) if log π and log μ are
    both in base 2 or 10, and the entropies in nats.
    Limits: a sampler that cuts tokens away (top-p) or a filter on responses also gives a mean other than 0, as it gives
    E[ρ] ≠ 1. Blind to a sampler under which the mean surprise does not change.
    """
    nothing = dict.fromkeys(("surprise/excess", "surprise/z", "surprise/expected"), math.nan)
    nothing |= {f"surprise/base{base}_z": math.nan for base in BASES}
    if entropy is None or not len(pairs):
        return nothing
    expected = entropy.detach().cpu()[pairs.mask].double()
    s = _terms(pairs, expected, 1.0)
    return {
        "surprise/excess": float(s.mean()),
        "surprise/z": deviate_of_sum(s, unseen=RAREST if float(s.sum()) < 0 else float(expected.max())),
        "surprise/expected": float(expected.mean()),
        **{f"surprise/base{base}_z": deviate_of_sum(_terms(pairs, expected, nats)) for base, nats in BASES.items()},
    }


def _terms(pairs: LogpPairs, entropy: Tensor, nats: float) -> Tensor:
    """The s of each token, [n]. entropy [n]: H in nats. nats: factor from the unit of log π and log μ to nats."""
    return (nats * pairs.l).exp() * (-nats * pairs.pi - entropy)


def deviate_of_sum(s: Tensor, variance: float = 0.0, unseen: float = 0.0) -> float:
    """The normal deviate of a sum of martingale differences s [n] of mean 0; 0 if all are 0.

    It is Σ s/√V with V the larger of Σ s² and `variance`, or less by the bound `unseen` on |s| of what was not drawn: see
    `surprise`.
    """
    total, v = float(s.sum()), max(float(s.square().sum()), variance)
    if v <= 0:
        return 0.0
    rate = min(abs(total) / v, 1 / max(unseen, 1e-300))
    return math.copysign(math.sqrt(2 * rate * abs(total) - rate**2 * v), total)
