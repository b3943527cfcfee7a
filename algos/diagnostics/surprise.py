"""Tests whether the sampled tokens surprise the trainer as much as its entropy H(π) says; the test needs H(π) at each token.

    E_μ[ρ·(−log π(x) − H(π)) | prefix] = Σ_x π(x)·(−log π(x)) − H(π)·Σ_x π(x) = 0

With ρ = π/μ, this holds for any two policies if μ is what sampled, as E[ρ] = 1 does (`identity`). The test also sees a sampler
q ≠ μ where μ is near π: E_q[π/μ] is then near 1 whatever q is, but the mean here is E_q[−log π] − H(π), of first order in q − μ.
Source: the law of change of measure, applied to the function −log π(x) − H(π).
"""

from __future__ import annotations

import math

from torch import Tensor

from algos.diagnostics.pairs import LogpPairs


def surprise(pairs: LogpPairs, entropy: Tensor | None = None) -> dict[str, float]:
    """The mean over tokens of s = ρ·(−log π − H), in nats, and its normal deviate; ρ = π/μ, and H is the entropy of π.

        z = Σ s/√(Σ s²)

    If μ sampled, the s of a response are martingale differences of mean 0. So Σ s² estimates the variance of Σ s, even where
    responses share a prompt. Under another sampler the s of a prompt are alike, and a clustered error would be too large.
    entropy: H(π_old) [B, T] in nats, by the pass that gave logp_old. excess: the mean of s, positive where the tokens are rarer
    than the policy says. expected: the mean H. NaN without entropies.
    Limits: a sampler that cuts tokens away (top-p) or a filter on responses also gives a mean other than 0, as it gives
    E[ρ] ≠ 1. Blind to a sampler under which the mean surprise does not change.
    """
    nothing = {"surprise/excess": math.nan, "surprise/z": math.nan, "surprise/expected": math.nan}
    if entropy is None or not len(pairs):
        return nothing
    expected = entropy.detach().cpu()[pairs.mask].double()
    s = pairs.rho * (-pairs.pi - expected)
    size = float(s.square().sum().sqrt())
    return {
        "surprise/excess": float(s.mean()),
        "surprise/z": float(s.sum()) / size if size > 0 else 0.0,
        "surprise/expected": float(expected.mean()),
    }
