"""Tests whether a batch's log μ and log π belong to the same tokens: one may be shifted by a token, or be another response's."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from algos.diagnostics.pairs import LogpPairs, correlation

FLOOR = -20.0
"""Log-probabilities below `FLOOR` nats are raised to it, so that a few tiny ones do not decide a correlation."""
FITS = 0.5
"""A response is called shifted if its mean |log μ_t − log π_(t±1)| is below `FITS` times its mean |log μ_t − log π_t|."""
ELSEWHERE = 0.2
"""A response is called permuted if the mean |log μ − log π| with another response's log π is below `ELSEWHERE` times that with
its own and with most others'. The factor is small because among many responses one is near by chance."""
TYPICAL = 0.1
"""Maximum share of other responses whose log π may be near a permuted one's log μ: near-certain tokens are near many."""
SMALLEST = 0.05
"""Minimum mean |log μ − log π| in nats of a response that can be called shifted or permuted."""
LONGEST = 256
"""Maximum number of leading tokens by which a response is compared with other responses of the batch."""
SHORTEST = 8
"""Minimum number of tokens of a response that can be called shifted or permuted; shorter ones resemble others by chance."""


def alignment(pairs: LogpPairs) -> dict[str, float]:
    """Correlations of log μ_t with log π_t, log π_(t+1) and log π_(t−1), and the shares of shifted and permuted responses.

    correlation, correlation_next, correlation_last: Pearson's r of log μ_t with log π_t, log π_(t+1) and log π_(t−1), all raised
    to at least −20 nats.
    shifted: share of responses whose mean |log μ_t − log π_(t±1)| is below half of that at t.
    permuted: share of responses whose mean |log μ − log π| with the log π of another response of equal length is small: below a
    fifth of that with their own, and below a fifth of that with nine tenths of the others. Shifted responses are left out.
    `shifted` and `permuted` only count responses of eight tokens or more whose mean |log μ − log π| is 0.05 nats or more.
    Limits: if log π is shifted by one token, r = 1 with the next or previous token; responses with equal log π cannot be told
    apart and do not count as permuted.
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
    """Mean |a − b| of each row over the tokens at which neither is NaN, [B]; ∞ for a row without such a token."""
    return (a - b).abs().nanmean(-1).nan_to_num(nan=math.inf)


def _elsewhere(mu: Tensor, pi: Tensor, own: Tensor) -> Tensor:
    """Whether each response's log μ is far nearer to another's log π than to its own, [B]. own: mean |log μ − log π|, [B]."""
    out = torch.zeros(len(mu), dtype=torch.bool)
    lengths = mu.isfinite().sum(-1)
    for length in lengths[own >= SMALLEST].unique().tolist():
        rows = (lengths == length).nonzero()[:, 0]
        here, there = (part[rows].nan_to_num(nan=0.0)[:, :LONGEST] for part in (mu, pi))
        apart = torch.stack([(row - there).abs().sum(-1) for row in here]) / max(1, min(length, LONGEST))
        nearest = torch.nn.functional.pad(apart.fill_diagonal_(math.inf).sort(-1).values, (0, 1), value=math.inf)
        usual = nearest[:, max(1, math.ceil(TYPICAL * (len(rows) - 1)) - 1)]
        out[rows] = nearest[:, 0] < ELSEWHERE * torch.minimum(own[rows], usual)
    return out
