"""Tests whether log μ and log π belong to the same tokens: one may be shifted by a token, or have its rows in another order."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from algos.diagnostics.pairs import LogpPairs, correlation

FLOOR = -20.0
"""Lower bound of a log-probability in nats. Smaller ones are raised to it, so that a few of them do not decide the
correlation."""
FITS = 0.5
"""A response is called shifted if its mean distance one token apart is below this share of that at its own place."""
ELSEWHERE = 0.2
"""A response is called permuted if its mean distance to another row is below this share of that to its own row. The share is
small because among many rows one is near by chance."""
SMALLEST = 0.05
"""Mean |log μ − log π| of a response in nats, below which it is taken to be at its place."""
LONGEST = 256
"""Number of leading tokens of a response that are compared with other rows."""
SHORTEST = 8
"""Minimum number of tokens of a response that can be called shifted or permuted; shorter ones fit elsewhere by chance."""


def alignment(pairs: LogpPairs) -> dict[str, float]:
    """Correlations of log μ_t with log π_t, log π_(t+1) and log π_(t−1), and the shares of responses that fit elsewhere.

    correlation, correlation_next, correlation_last: Pearson's r of log μ_t with log π_t, log π_(t+1) and log π_(t−1), all raised
    to at least −20 nats.
    shifted: share of responses whose mean |log μ_t − log π_(t±1)| is below half of that at t.
    permuted: share of responses whose mean |log μ − log π| to another response of the same length is below a fifth of that to its
    own.
    `shifted` and `permuted` only count responses of eight tokens or more whose own distance is 0.05 nats or more.
    Limits: a shift by one token leaves r = 1 one token apart; responses with equal numbers cannot be told apart and count as
    being at their place.
    """
    mask = pairs.mask
    mu, pi = (
        torch.where(mask, torch.where(mask, part.double(), 0.0).clamp(FLOOR, 0.0), math.nan)
        for part in (pairs.batch.logp_rollout, pairs.batch.logp_old)
        if part is not None
    )
    own = _distance(mu, pi)
    long = (mask.sum(-1) >= SHORTEST) & (own >= SMALLEST)
    shifted = torch.minimum(_distance(mu[:, :-1], pi[:, 1:]), _distance(mu[:, 1:], pi[:, :-1])) < FITS * own
    rows = max(1, pairs.responses)
    return {
        "alignment/correlation": _paired(mu, pi),
        "alignment/correlation_next": _paired(mu[:, :-1], pi[:, 1:]),
        "alignment/correlation_last": _paired(mu[:, 1:], pi[:, :-1]),
        "alignment/shifted": float((shifted & long).sum()) / rows,
        "alignment/permuted": float((_elsewhere(mu, pi, own) & long & ~shifted).sum()) / rows,
    }


def _paired(a: Tensor, b: Tensor) -> float:
    both = a.isfinite() & b.isfinite()
    return correlation(a[both], b[both])


def _distance(a: Tensor, b: Tensor) -> Tensor:
    """Mean |a − b| of each row over the places at which neither is NaN; ∞ where there is none."""
    return (a - b).abs().nanmean(-1).nan_to_num(nan=math.inf)


def _elsewhere(mu: Tensor, pi: Tensor, own: Tensor) -> Tensor:
    """Whether another row of pi of equal length is nearer to a row of mu than `ELSEWHERE` times the own distance, [B] bool."""
    out = torch.zeros(len(mu), dtype=torch.bool)
    lengths = mu.isfinite().sum(-1)
    for length in lengths[own >= SMALLEST].unique().tolist():
        rows = (lengths == length).nonzero()[:, 0]
        here, there = (part[rows].nan_to_num(nan=0.0)[:, :LONGEST] for part in (mu, pi))
        nearest = torch.stack([(row - there).abs().sum(-1) for row in here]).fill_diagonal_(math.inf).amin(-1) / max(1, length)
        out[rows] = nearest < ELSEWHERE * own[rows]
    return out
