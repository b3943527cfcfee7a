"""Every statistic of the diagnosis, by name; the signatures of `algos.faults` read them."""

from __future__ import annotations

from torch import Tensor

from algos.batch import Batch
from algos.diagnostics.alignment import alignment
from algos.diagnostics.collisions import collisions
from algos.diagnostics.drift import drift
from algos.diagnostics.duplicates import duplicates
from algos.diagnostics.identity import identity
from algos.diagnostics.pairs import LogpPairs
from algos.diagnostics.places import places
from algos.diagnostics.slope import slope
from algos.diagnostics.support import support
from algos.diagnostics.surprise import surprise
from algos.diagnostics.tails import tails
from algos.diagnostics.values import values

Statistics = dict[str, float]
"""Statistic's name -> value, NaN where the batch cannot tell. A name such as `slope/base` begins with the statistic's module,
whose docstrings explain the rest."""


def statistics(batch: Batch, tokens: Tensor | None = None, entropy: Tensor | None = None) -> Statistics:
    """All statistics of a batch, with the counts of tokens, responses and prompts. Raises ValueError without logp_old.

    tokens: [B, T] ids, which `collisions` compares. entropy: H(π_old) [B, T] in nats, which `surprise` needs.
    """
    pairs = LogpPairs(batch)
    found = {
        "size/tokens": float(len(pairs)),
        "size/responses": float(pairs.responses),
        "size/prompts": float(len(pairs.cluster.unique())),
    }
    for measured in (identity, values, alignment, slope, support, duplicates, places, tails, drift):
        found |= measured(pairs)
    return found | collisions(pairs, tokens) | surprise(pairs, entropy)
