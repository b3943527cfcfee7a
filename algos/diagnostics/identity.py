"""Tests whether the logged log μ is the sampler's: E_μ[π/μ] = 1 for any two policies π and μ, if the tokens come from μ.

E_μ[ρ | prefix] = Σ_x μ(x)·π(x)/μ(x) = 1        where μ(x) > 0 wherever π(x) > 0

Here ρ = π/μ of the sampled token. The identity holds for every prefix, so also by token position, turn and version of the
weights. Precision, staleness and the size of the mismatch do not matter. Source: the law of change of measure. It fails where
another policy sampled the tokens, and where log π or log μ is not what it is said to be. It also fails where the sampler left out
tokens: the mean is then the mass it kept, see `support`.
Limits: the lack of large, rare ratios in a batch lowers the mean and its error, more so the larger K3 = E[ρ − 1 − log ρ] is.
A batch that was filtered by its responses (truncated, overlong, duplicates dropped) breaks the identity without a fault.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from algos.diagnostics.pairs import BASES, LogpPairs, Mean
from algos.diagnostics.positions import bin_of

BIN_EDGES = (-8.0, -4.0, -2.0, -1.0, -0.5, -0.1)
"""Edges, in nats, of the bins of log μ in which the mean of π/μ is reported."""


def identity(pairs: LogpPairs) -> dict[str, float]:
    """The mean of ρ = π/μ over all tokens, which is 1 if μ sampled, and related statistics; l = log ρ.

    mean, error, clusters, z: E[ρ], its error clustered over prompts, their number, and its normal deviate from 1. k1, k1_z:
    E[−l], which estimates KL(μ‖π) ≥ 0, and its deviate from 0: negative beyond error when π and μ are swapped or μ did not
    sample. below = E[(1−ρ)+] ≤ 1 and above = E[(ρ−1)+] are equal if E[ρ] = 1; `below` is bounded, so a gap with a small `above`
    is a missing tail. swapped, swapped_z: E[1/ρ], which is 1 if π and μ are exchanged, and its deviate from 1. exponent: see
    `exponent`. base2_z, base10_z: the deviate of E[ρ] from 1 if log π and log μ are both in base 2 or 10.
    drawn_z: Σ(ρ−1)/√Σ(ρ−1)², the deviate of E[ρ] from 1 with the error of independent tokens. It is right if μ sampled, because
    ρ − 1 are then martingale differences; under another sampler it is larger than z. likelihood: Σ l over all tokens, the log
    likelihood of the batch under π less that under μ. If μ sampled, E[exp Σ l] = 1, so P(Σ l ≥ c) ≤ e⁻ᶜ.
    """
    ratio, reverse, k1 = pairs.mean(pairs.rho), pairs.mean((-pairs.l).exp()), pairs.mean(-pairs.l)
    off = torch.expm1(pairs.l)
    size = float(off.square().sum().sqrt())
    return {
        "identity/mean": ratio.mean,
        "identity/error": ratio.error,
        "identity/clusters": float(ratio.clusters),
        "identity/z": ratio.z(1.0),
        "identity/below": pairs.mean((-off).clamp(min=0)).mean,
        "identity/above": pairs.mean(off.clamp(min=0)).mean,
        "identity/swapped": reverse.mean,
        "identity/swapped_z": reverse.z(1.0),
        "identity/k1": k1.mean,
        "identity/k1_z": k1.z(0.0),
        "identity/exponent": exponent(pairs.l),
        **{f"identity/base{base}_z": pairs.mean((nats * pairs.l).exp()).z(1.0) for base, nats in BASES.items()},
        "identity/drawn_z": float(off.sum()) / size if size > 0 else 0.0,
        "identity/likelihood": float(pairs.l.sum()),
    }


def exponent(l: Tensor) -> float:
    """The exponent a > 0 with E[e^(a·l)] = 1, l = log π − log μ, by bisection over [1/8, 8]; NaN where there is none.

    E[e^(a·l)] is convex in a and 1 at a = 0, so there is at most one other root: a = 1 if μ sampled. If log π and log μ are both
    in base 2 or 10, their difference is l/ln 2 or l/ln 10, and so a = 0.693 or 2.303.
    """

    def excess(a: float) -> float:
        return float(torch.expm1((a * l).clamp(max=700.0)).mean())

    low, high = 0.125, 8.0
    if not len(l) or not (excess(low) < 0 < excess(high)):
        return math.nan
    for _ in range(50):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    return low


def identity_by(pairs: LogpPairs, group: Tensor, groups: int) -> list[Mean]:
    """The mean of ρ = π/μ in each of the groups 0 … groups − 1 of tokens; NaN in an empty group. group [n]: each token's group.

    Groups by anything known before the token was drawn (position, turn, version) obey E[ρ] = 1. Groups by log μ do not: there
    E[ρ] is π's mass of the group over μ's, which another temperature makes rise or fall steadily from bin to bin.
    """
    return [pairs.mean(pairs.rho, group == number) for number in range(groups)]


def by_place(pairs: LogpPairs) -> list[Mean]:
    """The mean of ρ = π/μ by a token's position in its response, a `Mean` per bin. Bin b ends at position 2ᵇ, counted from 1."""
    group = bin_of(pairs.place + 1)
    return identity_by(pairs, group, int(group.max()) + 1 if len(pairs) else 0)


def by_log_probability(pairs: LogpPairs) -> list[Mean]:
    """The mean of ρ = π/μ, which is π's mass over μ's, in bins of log μ between `BIN_EDGES`, the least probable tokens first."""
    edges = torch.tensor(BIN_EDGES, dtype=torch.float64)
    return identity_by(pairs, torch.bucketize(pairs.mu, edges), len(BIN_EDGES) + 1)


def by_turn(pairs: LogpPairs) -> list[Mean]:
    """The mean of ρ = π/μ in each turn, a `Mean` per turn number. Raises ValueError where the batch has no `segments`."""
    if pairs.batch.segments is None:
        raise ValueError("the identity by turn needs segments, the number of each token's turn")
    turn = pairs.batch.segments[pairs.mask].long()
    return identity_by(pairs, turn, int(turn.max()) + 1 if len(pairs) else 0)


def by_version(pairs: LogpPairs, versions: Tensor) -> dict[int, Mean]:
    """The mean of ρ = π/μ for each version of the sampler's weights: version -> mean. versions: integers per token, [B, T]."""
    version = versions.cpu()[pairs.mask]
    return {int(number): pairs.mean(pairs.rho, version == number) for number in version.unique().tolist()}
