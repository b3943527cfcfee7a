"""Tests whether responses to one prompt agree as often as the logged log μ says; no probability of the trainer is used."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from algos.diagnostics.pairs import BASES, LogpPairs, clustered_mean

SAME = 1e-4
"""Two tokens after equal prefixes count as equal if their log π differ by at most `SAME` nats; used without token ids."""
MOST = 8
"""Maximum number of later responses to the same prompt with which each response is compared."""
FEWEST = 20
"""A position is called shared if at least `FEWEST` pairs of responses are compared there, and all have equal tokens."""


def collisions(pairs: LogpPairs, tokens: Tensor | None = None) -> dict[str, float]:
    """Test whether two responses i, j to a prompt, after equal prefixes, have the same next token as often as log μ says.

        E[1{x_j = x_i} − μ(x_i) | equal prefixes, x_i] = 0

    because x_j is drawn from the same μ as x_i. The equation holds whatever π is, so the test also sees faults that change
    log μ and log π alike: log-probabilities from before the temperature or a penalty, tokens drafted by another policy. Only
    prefixes decide if a position counts, so the sum of the differences over positions is a martingale.
    found, expected: share f of agreements, and mean e of μ(x_i), over n pairs of compared tokens. z: the smaller in absolute
    value of two normal deviates of f − e, one with an error clustered over prompts, and one from the null hypothesis alone,

        z = ±√(2n·KL(f‖e)),   KL(f‖e) = f·log(f/e) + (1 − f)·log((1 − f)/(1 − e))

    whose tail exp(−z²/2) bounds the chance of so few or so many agreements of n independent pairs (W. Hoeffding, J. Am. Stat.
    Assoc. 58 (1963) 13). Pairs of more than two samples of a prompt share tokens, which the clustered error allows for. This
    alone is too small if agreements are rare: with none it is only the spread of e. Where z < 0 the tokens vary more than μ
    says. base2_z, base10_z: z if log μ is in base 2 or 10. shared: number of leading positions at which every
    pair agrees. shared_odds: the share of pairs that should do so by log μ. Prompt tokens that the mask counts as response agree
    in every pair, however improbable. Samples of one seed do so to their end: `shared` is 0 unless pairs part behind these
    positions, and at least half as often as log μ says.
    tokens: [B, T] ids, also at positions outside the mask, such as a tool's answer: prefixes must have these equal too. Without
    ids found, expected and z are NaN, since a trainer in 16 bits gives one token other log-probabilities in another micro-batch.
    `shared` then takes tokens with log π within 1e-4 nats for equal, which misses some. NaN if no prompt has two responses.
    """
    deviates = ("z", *(f"base{base}_z" for base in BASES))
    nothing = dict.fromkeys(("found", "expected", *deviates), math.nan) | {"shared": 0.0, "shared_odds": 1.0}
    nothing = {f"collisions/{name}": value for name, value in nothing.items()}
    prompt, mask = pairs.batch.prompt, pairs.mask
    if prompt is None or len(prompt) < 2 or not len(pairs) or pairs.batch.logp_old is None:
        return nothing
    order = prompt.argsort(stable=True)
    prompt, mask, mu = prompt[order], mask[order], torch.where(mask, pairs.batch.logp_rollout.double(), 0.0)[order]
    labels = torch.where(pairs.mask, pairs.batch.logp_old.double(), 0.0) if tokens is None else tokens.cpu()
    labels = labels[order]
    clusters, odds, agreed = [], [], []
    by_place = torch.zeros(4, mask.shape[1], dtype=torch.float64)  # pairs, of them agreeing, Σ log odds, Σ odds
    for distance in range(1, min(MOST, len(prompt) - 1) + 1):
        first, second = slice(None, -distance), slice(distance, None)
        both = mask[first] & mask[second] & (prompt[first] == prompt[second])[:, None]
        same = (labels[first] - labels[second]).abs() <= (SAME if tokens is None else 0)
        neither = ~(mask[first] | mask[second])
        prefix = (same & (both if tokens is None else both | neither)).long().cumprod(-1).bool()
        before = both & torch.nn.functional.pad(prefix[:, :-1], (1, 0), value=True)
        likely = mu[first].clamp(max=0.0).exp()
        odds.append(likely[before])
        agreed.append(same[before].double())
        clusters.append(prompt[first][:, None].expand_as(before)[before])
        by_place += torch.stack(
            [before.sum(0), (before & same).sum(0), *(torch.where(before, part, 0.0).sum(0) for part in (mu[first], likely))]
        )
    equal, p = torch.cat(agreed), torch.cat(odds)
    if not len(p):
        return nothing
    told = {}
    if tokens is not None:
        cluster = torch.cat(clusters).unique(return_inverse=True)[1]
        told = {"collisions/found": float(equal.mean()), "collisions/expected": float(p.mean())}
        for name, nats in zip(deviates, (1.0, *BASES.values()), strict=True):
            told[f"collisions/{name}"] = _deviate(equal, p**nats, cluster)
    shared = int(((by_place[0] == by_place[1]) & (by_place[0] >= FEWEST)).long().cumprod(0).sum())
    behind = by_place[:, shared:].sum(1)
    if behind[0] - behind[1] < max(1.0, float(behind[0] - behind[3]) / 2):
        shared = 0
    shared_odds = math.exp(float((by_place[2] / by_place[0].clamp(min=1))[:shared].sum()))
    return nothing | told | {"collisions/shared": float(shared), "collisions/shared_odds": shared_odds}


def _deviate(equal: Tensor, p: Tensor, cluster: Tensor) -> float:
    """The smaller of two normal deviates of the mean of `equal` − p, both [n]. cluster [n]: number of each pair's prompt."""
    null = _of_the_null(len(p), float(equal.mean()), float(p.mean()))
    return min(clustered_mean(equal - p, cluster).z(0.0), null, key=abs)


def _of_the_null(n: int, found: float, expected: float) -> float:
    """The normal deviate ±√(2n·KL(found‖expected)) of a share `found` of n draws, when the share `expected` is expected."""
    f, e = (torch.tensor([share, 1 - share], dtype=torch.float64) for share in (found, expected))
    return math.copysign(math.sqrt(2 * n * max(0.0, float((torch.xlogy(f, f) - torch.xlogy(f, e)).sum()))), found - expected)
