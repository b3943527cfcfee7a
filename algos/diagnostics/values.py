"""Finds numbers that are no log-probabilities: fill values, floors, missing numbers, and places where nothing was sampled."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from algos.diagnostics.pairs import LogpPairs

COMMONEST = 8
"""Number of whole or very low values of a column that are examined, the commonest first."""
FEWEST = 3
"""Minimum number of tokens at which a fill value occurs."""
FLOOR = -15.0
"""Bound in nats: a value below it that occurs at several tokens is a floor, such as log 1e-8 = -18.4."""
IMPOSSIBLE = -100.0
"""Bound in nats: a token of log μ below it was not sampled, since e⁻¹⁰⁰ is 4e-44."""
FAR = 0.5
"""Minimum mean |log ratio| in nats at a fill value. A token that is certain in both columns has both near 0."""


class Fill(NamedTuple):
    """A fill value, which one column repeats where the other does not. share: share of all tokens that have the value.

    gap: mean |l| of the tokens with the value, nats. last: share of these tokens that end their response.
    """

    value: float
    share: float
    gap: float
    last: float


NOTHING = Fill(math.nan, 0.0, 0.0, 0.0)


def values(pairs: LogpPairs) -> dict[str, float]:
    """Repeated values in either column, missing numbers, and constant runs at the ends of responses.

    rollout_fill, rollout_fill_share, rollout_fill_gap, rollout_fill_last: value and fields of the `Fill` of the rollout's column;
    trainer_fill and so on: of the trainer's. NaN, 0, 0, 0 without one.
    missing: share of masked tokens at which a column is infinite or NaN. impossible: share of tokens with log μ < −100 nats.
    head, tail: share of tokens in a constant run of two or more at the start or the end of a response, the same in both columns.
    Such runs are prompt tokens or padding that the mask calls response. inside: share of the other tokens with that constant.
    """
    rollout, trainer = fill(pairs.mu, pairs.pi, pairs.left), fill(pairs.pi, pairs.mu, pairs.left)
    head, tail, inside = constant_ends(pairs)
    return {
        "values/rollout_fill": rollout.value,
        "values/rollout_fill_share": rollout.share,
        "values/rollout_fill_gap": rollout.gap,
        "values/rollout_fill_last": rollout.last,
        "values/trainer_fill": trainer.value,
        "values/trainer_fill_share": trainer.share,
        "values/trainer_fill_gap": trainer.gap,
        "values/trainer_fill_last": trainer.last,
        "values/missing": pairs.dropped / max(1, pairs.dropped + len(pairs)),
        "values/impossible": float((pairs.mu < IMPOSSIBLE).sum()) / max(1, len(pairs)),
        "values/head": head,
        "values/tail": tail,
        "values/inside": inside,
    }


def fill(column: Tensor, other: Tensor, left: Tensor) -> Fill:
    """The most frequent value of `column` [n] that is no log-probability; `NOTHING` if there is none.

    A value counts if it is a whole number or below `FLOOR`, and if the numbers of `other` at its tokens are mostly distinct and
    far from it. Equal contexts repeat a number in both columns, and a certain token has 0 in both. left [n]: number of tokens of
    the response after each token.
    """
    unique, counts = column[(column % 1 == 0) | (column < FLOOR)].unique(return_counts=True)
    for i in counts.argsort(descending=True)[:COMMONEST].tolist():
        there = column == unique[i]
        numbers = other[there]
        gap = float((numbers - unique[i]).abs().clamp(max=50.0).mean())
        if counts[i] >= FEWEST and gap >= FAR and len(numbers.unique()) > len(numbers) / 2:
            return Fill(float(unique[i]), float(counts[i]) / len(column), gap, float((left[there] == 0).double().mean()))
    return NOTHING


def constant_ends(pairs: LogpPairs) -> tuple[float, float, float]:
    """Shares (head, tail, inside) of tokens in constant runs at starts and ends of responses, and of the constants elsewhere.

    A run is two or more tokens with one pair (log μ, log π), the commonest at that end of the responses. inside: the share of the
    tokens outside the runs that hold the constant of the head or of the tail, the larger of both.
    """
    head, head_inside = _runs(pairs, pairs.place == 0, backwards=False)
    tail, tail_inside = _runs(pairs, pairs.left == 0, backwards=True)
    return head, tail, max(head_inside, tail_inside)


def _runs(pairs: LogpPairs, ends: Tensor, backwards: bool) -> tuple[float, float]:
    """Share of tokens in runs of the commonest pair of numbers at `ends`, and the share of that pair among the other tokens."""
    if not len(pairs):
        return 0.0, 0.0
    unique, counts = torch.stack([pairs.mu[ends], pairs.pi[ends]], -1).unique(dim=0, return_counts=True)
    mu, pi = unique[counts.argmax()]
    same = torch.zeros_like(pairs.mask)
    same[pairs.mask] = (pairs.mu == mu) & (pairs.pi == pi)
    going = same | ~pairs.mask  # a hole in the mask ends no run
    run = (going.flip(-1) if backwards else going).long().cumprod(-1).bool()
    run = (run.flip(-1) if backwards else run) & pairs.mask
    run &= run.sum(-1, keepdim=True) >= 2
    rest = pairs.mask & ~run
    return float(run.sum()) / len(pairs), float((same & rest).sum()) / max(1, int(rest.sum()))
