"""Finds numbers in log μ and log π that belong to no sampled token: fill values, floors, missing numbers, constant runs."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from algos.diagnostics.pairs import LogpPairs

COMMONEST = 8
"""Number of suspicious values (see `fill`) of log μ or log π that are examined, the commonest first."""
NEIGHBOURS, NEAR = 16, 1.0
"""A value's neighbours are the `NEIGHBOURS` next distinct numbers of the column on each side of it, within `NEAR` nats."""
FEWEST = 3
"""Minimum number of tokens at which a value must occur to be called a fill value."""
FLOOR = -15.0
"""Bound in nats: a log-probability below it that occurs at several tokens is a floor, such as log 1e-8 = -18.4."""
LOWEST = 10
"""Minimum number of tokens that have the lowest value of a column, for it to be called a fill value though it is neither a whole
number nor below `FLOOR`. A few tokens of a small dump may share an odds by chance."""
POSITIVE = 1e-4
"""Bound in nats above which a log-probability is above 0 by more than the rounding of fp32 logits, a few 1e-6."""
IMPOSSIBLE = -100.0
"""Bound in nats: a token whose log μ is below it cannot have been sampled, since e⁻¹⁰⁰ is 4e-44."""
CERTAIN = -1e-6
"""Log-probability above which a token is certain to the rounding of fp32. A sampler may well have drawn a run of such tokens."""
FAR = 0.2
"""Minimum mean |log π − log μ| in nats at a fill value, because a token that is certain under both policies has both near 0."""


class Fill(NamedTuple):
    """A value that one of log μ and log π repeats where the other varies. share: share of all tokens that have the value.

    gap: mean |log π − log μ| of the tokens with the value, nats. last: share of these tokens that end their response.
    """

    value: float
    share: float
    gap: float
    last: float


NOTHING = Fill(math.nan, 0.0, 0.0, 0.0)


def values(pairs: LogpPairs, tokens: Tensor | None = None) -> dict[str, float]:
    """Fill values in log μ or log π, missing numbers, and constant runs at the ends of responses.

    rollout_fill, rollout_fill_share, rollout_fill_gap, rollout_fill_last: value and fields of the `Fill` of log μ; trainer_fill
    and so on: those of log π. NaN, 0, 0, 0 if there is no fill value.
    rollout_positive, trainer_positive: share of tokens whose log μ or log π is above 0 beyond rounding.
    missing: share of response tokens whose log μ or log π is infinite or NaN. impossible: share with log μ < −100 nats.
    head, tail: share of tokens in a run of two or more equal pairs (log μ, log π) at the start or the end of a response. Such
    runs are prompt tokens or padding that the mask calls response. head_inside, tail_inside: share of tokens outside these runs
    that have the run's pair. See `constant_ends`. tokens: [B, T] ids, or None.
    """
    rollout, trainer = fill(pairs.mu, pairs.pi, pairs.left), fill(pairs.pi, pairs.mu, pairs.left)
    (head, head_inside), (tail, tail_inside) = constant_ends(pairs, tokens)
    return {
        "values/rollout_fill": rollout.value,
        "values/rollout_fill_share": rollout.share,
        "values/rollout_fill_gap": rollout.gap,
        "values/rollout_fill_last": rollout.last,
        "values/trainer_fill": trainer.value,
        "values/trainer_fill_share": trainer.share,
        "values/trainer_fill_gap": trainer.gap,
        "values/trainer_fill_last": trainer.last,
        "values/rollout_positive": float((pairs.mu > POSITIVE).sum()) / max(1, len(pairs)),
        "values/trainer_positive": float((pairs.pi > POSITIVE).sum()) / max(1, len(pairs)),
        "values/missing": pairs.dropped / max(1, pairs.dropped + len(pairs)),
        "values/impossible": float((pairs.mu < IMPOSSIBLE).sum()) / max(1, len(pairs)),
        "values/head": head,
        "values/head_inside": head_inside,
        "values/tail": tail,
        "values/tail_inside": tail_inside,
    }


def fill(column: Tensor, other: Tensor, left: Tensor) -> Fill:
    """The most frequent value of `column` [n], log μ or log π, that is no log-probability; NaN with shares of 0 if none.

    A value counts if it is a whole number, below −15 nats or the lowest of the column (at `LOWEST` tokens or more), and commoner
    than its neighbours. At its tokens the other policy's column `other` [n] must be far from the value, since a certain token has
    0 in both. It must be mostly distinct there, since equal contexts repeat a number in both. left [n]: number of the response's
    tokens after each token.
    """
    unique, counts = column.unique(return_counts=True)
    suspicious = (unique % 1 == 0) | (unique < FLOOR) | ((unique == unique[:1]) & (counts >= LOWEST))
    order = torch.where(suspicious, counts, 0).argsort(descending=True)[: min(COMMONEST, int(suspicious.sum()))]
    for i in order.tolist():
        there = column == unique[i]
        numbers = other[there]
        gap = float((numbers - unique[i]).abs().clamp(max=50.0).mean())
        distinct = len(numbers.unique()) > len(numbers) / 2
        if counts[i] >= FEWEST and gap >= FAR and distinct and counts[i] > _by_chance(unique, counts, i):
            return Fill(float(unique[i]), float(counts[i]) / len(column), gap, float((left[there] == 0).double().mean()))
    return NOTHING


def _by_chance(unique: Tensor, counts: Tensor, i: int) -> float:
    """Number of tokens that may have a column's value unique[i] by chance; unique, counts [u]: ascending values, their numbers.

    A rounded column (BF16, FP16, decimals) has few distinct numbers, whole ones among them. The limit is six Poisson deviates
    above the mean count of the neighbours. The m neighbours that occur have c_j ≥ 1 tokens, so the mean is that of a Poisson
    distribution without zeros, Σ_{c_j ≥ 2} c_j/m (R. L. Plackett, Biometrika 40 (1953) 485). It is 0 in an unrounded column.
    """
    near = torch.cat([torch.arange(max(0, i - NEIGHBOURS), i), torch.arange(i + 1, min(len(unique), i + 1 + NEIGHBOURS))])
    c = counts[near[(unique[near] - unique[i]).abs() <= NEAR]]
    mean = float(c[c >= 2].sum()) / max(1, len(c))
    return FEWEST + mean + 6 * math.sqrt(mean) if mean else 0.0


def constant_ends(pairs: LogpPairs, tokens: Tensor | None = None) -> tuple[tuple[float, float], tuple[float, float]]:
    """Shares of tokens in constant runs at starts and at ends of responses, each with the share of other tokens like the run.

    A run is two or more tokens with one pair (log μ, log π), the commonest at that end of the responses. Padding repeats one
    token, so with tokens [B, T], ids, a run at the end has one id, too. A run of certain tokens at the end, with both
    log-probabilities 0 to rounding, counts only if responses are filled up to one width. They are if the variance of the places
    where they end is at most half of that without the runs: it is 0 for one width, and at least the whole for sampled endings.
    A run of certain tokens at the start counts only if ids at its places differ between responses, as prompts do. Without ids
    it always counts.
    """
    mu_pi = torch.stack([pairs.mu, pairs.pi], -1)
    with_ids = mu_pi if tokens is None else torch.cat([mu_pi, tokens.cpu()[pairs.mask].double()[:, None]], -1)
    ids = None if tokens is None else tokens.cpu()
    return _runs(pairs, mu_pi, False, ids), _runs(pairs, with_ids, True, ids)


def _runs(pairs: LogpPairs, keys: Tensor, backwards: bool, tokens: Tensor | None) -> tuple[float, float]:
    """Share of tokens in runs of the commonest of `keys` at one end of responses, and that key's share of other tokens.

    keys [n, 2 or 3]: (log μ, log π) of each token, and its id if it is known. backwards: whether runs are at the last tokens.
    """
    if not len(pairs):
        return 0.0, 0.0
    unique, counts = keys[(pairs.left if backwards else pairs.place) == 0].unique(dim=0, return_counts=True)
    key = unique[counts.argmax()]
    same = torch.zeros_like(pairs.mask)
    same[pairs.mask] = (keys == key).all(-1)
    going = same | ~pairs.mask  # a hole in the mask ends no run
    run = (going.flip(-1) if backwards else going).long().cumprod(-1).bool()
    run = (run.flip(-1) if backwards else run) & pairs.mask
    run &= run.sum(-1, keepdim=True) >= 2
    if bool((key[:2] > CERTAIN).all()) and not (_fill_up(pairs.mask, run) if backwards else _differ(tokens, run)):
        run = torch.zeros_like(run)
    rest = pairs.mask & ~run
    return float(run.sum()) / len(pairs), float((same & rest).sum()) / max(1, int(rest.sum()))


def _differ(tokens: Tensor | None, run: Tensor) -> bool:
    """Whether ids at a number of tokens from the start differ between runs there, or are unknown. tokens, run: [B, T]."""
    if tokens is None:
        return True
    place = run.cumsum(-1)[run]
    pairs = torch.stack([place, tokens[run]], -1).unique(dim=0)
    return len(pairs) > len(place.unique())


def _fill_up(mask: Tensor, run: Tensor) -> bool:
    """Whether the runs at the ends of responses fill these up to one width. mask, run: [B, T] bool."""
    after = torch.arange(1, mask.shape[-1] + 1, dtype=torch.float64)
    present = mask.any(-1)
    whole, without = ((after * part).amax(-1)[present].var(correction=0) for part in (mask, mask & ~run))
    return bool(whole <= without / 2)
