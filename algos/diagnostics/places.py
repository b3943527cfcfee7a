"""Locates where in responses the logits of trainer and sampler differ; log-probabilities hardly differ at likely tokens."""

from __future__ import annotations

import math

from torch import Tensor

from algos.diagnostics.pairs import LogpPairs, Mean, normal

CERTAIN = 1e-4
"""A token counts only if π or μ gives it a probability below 1 − `CERTAIN`: nearer to 1, fp32 says nothing about its logit."""
LARGEST = 25.0
"""Upper bound of a token's (logit π − logit μ)² in square nats, so that no single token dominates a mean."""
HEAD = 4
"""Number of leading tokens that count as the head of a response."""


def moved(pairs: LogpPairs) -> tuple[Tensor, Tensor]:
    """Per token, [n]: the squared move d² = (logit π − logit μ)² up to `LARGEST`, and whether π or μ is below 1 − `CERTAIN`."""
    doubtful = (pairs.mu < -CERTAIN) | (pairs.pi < -CERTAIN)
    return pairs.margin.square().clamp(max=LARGEST), doubtful


def places(pairs: LogpPairs) -> dict[str, float]:
    """Mean squared moves d² = (logit π − logit μ)² of first and later tokens, and before and after the largest change.

    A prompt that only trainer or sampler has read moves the first tokens most, and later ones less as the response itself becomes
    the context: head/rest > 1. A fault of the KV cache leaves the first tokens as they were and begins at some later position:
    after/before > 1. Rounding moves a logit by a share of it, so d² also grows where logits do.
    size: mean d². head, rest: mean d² of the first four tokens and of all later ones; head_z: normal deviate of head − rest.
    onset: the position s that maximises |mean d² from s on − mean d² before s| over its error, for s = 1, 2, 4, 8, …; before,
    after, onset_z: these means, and the deviate of their difference. last, others: mean |l|, l = log π − log μ, of the last
    tokens of responses and of all other tokens; last_z: normal deviate of last − others. last_l: mean l of the last tokens.
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
    """The difference a − b of two means over its error, as a normal deviate; NaN if a or b is. a and b count as independent."""
    return normal(a.mean - b.mean, math.hypot(a.error, b.error), min(a.clusters, b.clusters) - 1)


def _onset(pairs: LogpPairs, square: Tensor, doubtful: Tensor) -> tuple[float, float, float, float]:
    """(mean before, mean after, position, z) of the position with the largest |z|; NaN if no position has tokens on both sides.

    The means are those of `square` [n], (logit π − logit μ)², over the tokens in `doubtful` [n] bool, before the position and
    from it on. z: normal deviate of the difference of the two means.
    """
    best = (math.nan, math.nan, math.nan, math.nan)
    place, longest = 1, int(pairs.place.max()) if len(pairs) else 0
    while place <= longest:
        before, after = (pairs.mean(square, doubtful & chosen) for chosen in (pairs.place < place, pairs.place >= place))
        z = _difference(after, before)
        if math.isfinite(z) and not abs(z) <= abs(best[3]):
            best = (before.mean, after.mean, float(place), z)
        place *= 2
    return best
