"""Tests whether trainer or sampler has mass where the other has none, as when only one of them uses top-p, top-k or min-p."""

from __future__ import annotations

import torch

from algos.diagnostics.pairs import LogpPairs


def support(pairs: LogpPairs) -> dict[str, float]:
    """Statistics of how many ratios ρ = π/μ exceed 1, and of the probability mass that a sampler with top-p or the like kept.

    A sampler cut to a set S of tokens and renormalised has μ = π/π(S) on S. So ρ = π(S) ≤ 1 at every token, and E[ρ] is the mean
    mass that was kept: at least p for top-p sampling.
    above: share of tokens with ρ > 1. one_sided = 1 − E[(ρ−1)+]/E[(1−ρ)+]: 1 where no ratio is above 1, and 0 where E[ρ] = 1.
    certain: share of tokens with μ = 1 exactly and π below 0.999, where S is a single token. certain_mass: mean π of these
    tokens, 1 without one. lowest: the 1 % quantile of ρ, near the p of top-p sampling when nothing else differs;
    1 for more than 10⁷ tokens.
    """
    off = torch.expm1(pairs.l)
    gain, loss = float(off.clamp(min=0).sum()), float((-off).clamp(min=0).sum())
    n = max(1, len(pairs))
    alone = (pairs.mu == 0) & (pairs.pi < -1e-3)
    return {
        "support/above": float((off > 0).sum()) / n,
        "support/one_sided": 1 - gain / loss if loss > 0 else 0.0,
        "support/certain": float(alone.sum()) / n,
        "support/certain_mass": float(pairs.pi[alone].exp().mean()) if alone.any() else 1.0,
        "support/lowest": float(pairs.rho.quantile(0.01)) if 0 < len(pairs) <= 10**7 else 1.0,
    }
