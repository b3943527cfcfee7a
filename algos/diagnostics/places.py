"""Locates the mismatch within a response, measured in logits so that certain tokens count as much as doubtful ones."""

from __future__ import annotations

import math

from torch import Tensor

from algos.diagnostics.pairs import LogpPairs, Mean, normal

CERTAIN = 1e-4
"""A token is left out if its probability exceeds 1 minus this in both columns: fp32 then says nothing about its logit."""
LARGEST = 25.0
"""Upper bound of (logit π − logit μ)² in square nats, so that no single token dominates a profile."""
HEAD = 4
"""Number of leading tokens that count as the head of a response."""


def moved(pairs: LogpPairs) -> tuple[Tensor, Tensor]:
    """The squared move d² = (logit π − logit μ)² up to `LARGEST` [n], and where a side is less sure than 1 − `CERTAIN` [n]."""
    doubtful = (pairs.mu < -CERTAIN) | (pairs.pi < -CERTAIN)
    return pairs.margin.square().clamp(max=LARGEST), doubtful


def places(pairs: LogpPairs) -> dict[str, float]:
    """Mean squared moves d² of the logits by place: head, rest, and before and after the place of the largest change.

    Rounding gives logits the same error at every place, so d² is flat. A prompt that only one side has read moves the first
    tokens most, and less as the response itself becomes the context: head/rest > 1. A fault of the KV cache leaves the head as it
    was and begins at some later place: after/before > 1.
    size: mean d². head, rest: over the first four tokens, over all later ones. head_z: of their difference, clustered.
    onset: the place s that maximises |mean d² from s on − mean d² before s| in units of its error, over s = 1, 2, 4, 8, …;
    before, after, onset_z: the two means, and their difference over its error. last, others: mean |l| of the last tokens of
    responses and of all other tokens; last_z: of their difference. last_l: mean l of the last tokens.
    """
    square, doubtful = moved(pairs)
    whole = pairs.mean(square, doubtful)
    head, rest = doubtful & (pairs.place < HEAD), doubtful & (pairs.place >= HEAD)
    before, after, onset, onset_z = _onset(pairs, square, doubtful)
    size = pairs.l.abs()
    last = pairs.left == 0
    ends, others = pairs.mean(size, last), pairs.mean(size, ~last)
    return {
        "places/size": whole.mean,
        "places/head": pairs.mean(square, head).mean,
        "places/rest": pairs.mean(square, rest).mean,
        "places/head_z": _difference(pairs.mean(square, head), pairs.mean(square, rest)),
        "places/onset": onset,
        "places/before": before,
        "places/after": after,
        "places/onset_z": onset_z,
        "places/last": ends.mean,
        "places/others": others.mean,
        "places/last_z": _difference(ends, others),
        "places/last_l": float(pairs.l[last].mean()) if last.any() else math.nan,
    }


def _difference(a: Mean, b: Mean) -> float:
    """The difference a − b over its error as a normal deviate, as if the means were independent; NaN where one is missing."""
    return normal(a.mean - b.mean, math.hypot(a.error, b.error), min(a.clusters, b.clusters) - 1)


def _onset(pairs: LogpPairs, square: Tensor, doubtful: Tensor) -> tuple[float, float, float, float]:
    """The tuple (before, after, place, z) of the place with the largest |z|; NaN where no place has tokens on both sides."""
    best = (math.nan, math.nan, math.nan, math.nan)
    place, longest = 1, int(pairs.place.max()) if len(pairs) else 0
    while place <= longest:
        before, after = (pairs.mean(square, doubtful & chosen) for chosen in (pairs.place < place, pairs.place >= place))
        z = _difference(after, before)
        if math.isfinite(z) and not abs(z) <= abs(best[3]):
            best = (before.mean, after.mean, float(place), z)
        place *= 2
    return best
