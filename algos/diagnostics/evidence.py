"""Every statistic of the diagnosis of a batch, by name; the faults in `algos.faults` are recognised by these."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from algos.batch import Batch
from algos.diagnostics.alignment import alignment
from algos.diagnostics.collisions import collisions
from algos.diagnostics.drift import drift
from algos.diagnostics.duplicates import duplicates
from algos.diagnostics.identity import identity
from algos.diagnostics.pairs import LogpPairs
from algos.diagnostics.places import places
from algos.diagnostics.repeats import repeats
from algos.diagnostics.slope import slope
from algos.diagnostics.support import support
from algos.diagnostics.surprise import surprise
from algos.diagnostics.tails import tails
from algos.diagnostics.values import values

Statistics = dict[str, float]
"""Statistic's name -> value, NaN where the batch cannot tell. In a name such as `slope/base`, `slope` is the module of
`algos.diagnostics` that explains it."""


class Predicted(NamedTuple):
    """What π_old says of each place before its token is drawn, [B, T] each: its entropy in nats, and `repeat_prob`.

    repeat_prob: π_old of all tokens that the response already has. A part that was not computed is None.
    """

    entropy: Tensor | None = None
    repeat_prob: Tensor | None = None


def statistics(batch: Batch, tokens: Tensor | None = None, predicted: Predicted | None = None) -> Statistics:
    """All statistics of a batch that a diagnosis reads, with the batch's size. Raises ValueError without `logp_old`.

    tokens: [B, T] ids, for `values`, `collisions` and `repeats`. predicted: what `surprise` and `repeats` need of π_old.
    """
    pairs = LogpPairs(batch)
    found = {
        "size/tokens": float(len(pairs)),
        "size/responses": float(pairs.responses),
        "size/prompts": float(len(pairs.cluster.unique())),
    }
    for measured in (identity, alignment, slope, support, duplicates, places, tails, drift):
        found |= measured(pairs)
    found |= values(pairs, tokens) | collisions(pairs, tokens)
    entropy, repeat_prob = predicted or Predicted()
    return found | surprise(pairs, entropy) | repeats(pairs, tokens, repeat_prob)
