"""Numbers that are no log-probabilities: fill values, floors, missing numbers, and places where nothing was sampled."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from algos.diagnostics.pairs import LogpPairs

COMMONEST = 8
"""Values of a column that are looked at, the commonest first."""
FEWEST = 3
"""Tokens that a fill value stands at, at least."""
FAR = 0.5
"""Nats: mean |l| of the tokens with a fill value, at least. A token that is certain in both columns has both near 0."""


class Fill(NamedTuple):
    """A value that a column repeats where the other does not. share: of all tokens; gap: mean |l| there, nats."""

    value: float
    share: float
    gap: float


def values(pairs: LogpPairs) -> dict[str, float]:
    """Repeated values in either column, missing numbers, and constant runs at the ends of responses.

    rollout_fill, rollout_fill_share, rollout_fill_gap: see `fill`; likewise for the trainer's column, and NaN, 0, 0 without one.
    missing: share of masked tokens at which a column is infinite or NaN.
    head, tail: share of tokens in a run of two or more at the start or the end of a response where both columns hold one and the
    same constant, less the share of such tokens elsewhere: prompt tokens or padding that the mask calls response.
    """
    rollout, trainer = fill(pairs.mu, pairs.pi), fill(pairs.pi, pairs.mu)
    head, tail, inside = constant_ends(pairs)
    return {
        "values/rollout_fill": rollout.value,
        "values/rollout_fill_share": rollout.share,
        "values/rollout_fill_gap": rollout.gap,
        "values/trainer_fill": trainer.value,
        "values/trainer_fill_share": trainer.share,
        "values/trainer_fill_gap": trainer.gap,
        "values/missing": pairs.dropped / max(1, pairs.dropped + len(pairs)),
        "values/head": head,
        "values/tail": tail,
        "values/inside": inside,
    }


def fill(column: Tensor, other: Tensor) -> Fill:
    """The value of `column` [n] that stands at most tokens where `other` varies and is far from it; NaN, 0, 0 if there is none.

    Equal contexts repeat a number in both columns, so a value counts only where most of the other column's numbers are distinct.
    """
    if not len(column):
        return Fill(math.nan, 0.0, 0.0)
    unique, counts = column.unique(return_counts=True)
    for i in counts.argsort(descending=True)[:COMMONEST].tolist():
        if counts[i] < FEWEST:
            break
        there = other[column == unique[i]]
        gap = float((there - unique[i]).abs().clamp(max=50.0).mean())
        if gap >= FAR and len(there.unique()) > len(there) / 2:
            return Fill(float(unique[i]), float(counts[i]) / len(column), gap)
    return Fill(math.nan, 0.0, 0.0)


def constant_ends(pairs: LogpPairs) -> tuple[float, float, float]:
    """(head, tail, inside): shares of all tokens, of those where both columns hold the constant of the ends.

    The constant is the commonest pair of numbers at the last places, and for the head at the first places. A run counts from two.
    inside: the share of the other tokens that hold the tail's or the head's constant, whichever is more.
    """
    mask, n = pairs.mask, len(pairs)
    if not n or pairs.batch.logp_old is None:
        return 0.0, 0.0, 0.0
    shares, inside = [], 0.0
    for at_end in (pairs.place == 0, pairs.left == 0):
        ends = torch.stack([pairs.mu[at_end], pairs.pi[at_end]], -1)
        unique, counts = ends.unique(dim=0, return_counts=True)
        mu, pi = unique[counts.argmax()]
        same = torch.zeros(mask.shape, dtype=torch.bool)
        same[mask] = (pairs.mu == mu) & (pairs.pi == pi)
        going = same | ~mask  # a hole in the mask ends no run
        if at_end is not None and bool((at_end == (pairs.left == 0)).all()):
            going = going.flip(-1)
        run = going.long().cumprod(-1).bool()
        if bool((at_end == (pairs.left == 0)).all()):
            run = run.flip(-1)
        run &= mask
        run &= run.sum(-1, keepdim=True) >= 2
        shares.append(float(run.sum()) / n)
        rest = mask & ~run
        inside = max(inside, float((same & rest).sum()) / max(1, int(rest.sum())))
    return shares[0], shares[1], inside
