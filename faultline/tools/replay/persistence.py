"""Persistence of the mismatch between two dumped steps of a run: whether its error stays when the weights change.

    persistence = Σ l·l' / √(Σ l² · Σ l'²)

with l and l' the log ratios log π_old − log μ of one token after one prefix, the prompt included, in the two steps. The sums are
over the prefixes that both steps hold. The lag is the number of steps between the two, with one sync of the weights per step.

A run measures persistence on other tokens: all of a few fixed responses, scored again 1, 5 and 20 syncs later
(harness/train/persistence.py). Prefixes that recur in a dump are the likely ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from faultline.tools.replay.sources import Dump
from harness.room import bounded

LAG = 20
"""Lag, in steps, of the two compared steps of a dump. The rules that choose a correction (docs/decision.md) were tuned at 20."""
ACCEPTED = range(10, 41)
"""Lags in steps, half to twice LAG, at which the persistence of a mismatch may influence the choice of a correction."""
FEWEST = 100
"""Minimum number of prefixes that the two compared steps share. With fewer, no persistence of the mismatch is reported."""
LONGEST = 64
"""Number of leading tokens of a response that are compared between two steps. Longer prefixes hardly recur."""
NEEDED = ("step", "prompt", "tokens", "logp_rollout", "logp_old")


class Lasting(NamedTuple):
    """Persistence of the mismatch, the similarity of its log ratios, between two steps of a dump.

    value: the persistence, None if it cannot be measured. why: the reason, or the steps and prefixes compared.
    lag: number of steps between the two.
    """

    value: float | None
    why: str
    lag: int | None = None

    @property
    def known(self) -> float | None:
        """Persistence of the mismatch for rules that choose a correction; None if not measured, or at a lag outside ACCEPTED."""
        return self.value if self.lag in ACCEPTED else None


def persistence(dump: Dump) -> Lasting:
    """Correlate the log ratios that a dump has after equal prefixes in its first step and in the step nearest to LAG steps later.

    Raises UserError if the dump takes more memory than there is room for.
    """
    with bounded(dump.path):
        return _persistence(dump)


def _persistence(dump: Dump) -> Lasting:
    kept: dict[int, list[pa.Table]] = {}
    for table in dump.tables():
        if lacking := [name for name in NEEDED if name not in table.column_names or table[name].null_count]:
            return Lasting(None, f"the dump has no {' and no '.join(lacking)}")
        for step in pc.unique(table["step"]).to_pylist():
            kept.setdefault(step, []).append(table.filter(pc.equal(table["step"], step)))
            first = min(kept)
            best = min(kept.keys() - {first}, key=lambda step: (abs(abs(step - first) - LAG), step), default=first)
            kept = {step: tables for step, tables in kept.items() if step in (first, best)}
    steps = {step: {key: ratio for table in tables for key, ratio in _prefixes(table)} for step, tables in kept.items()}
    if len(steps) < 2:
        return Lasting(None, "one step cannot show whether the error stays; two that share prefixes can")
    first, later = sorted(steps)
    shared = steps[first].keys() & steps[later].keys()
    if len(shared) < FEWEST:
        return Lasting(None, f"steps {first} and {later} share {len(shared)} prefixes, and {FEWEST} are needed")
    pairs = [(steps[first][key], steps[later][key]) for key in shared]
    scale = math.sqrt(math.fsum(a * a for a, _ in pairs) * math.fsum(b * b for _, b in pairs))
    if scale == 0:
        return Lasting(None, "all log ratios are 0")
    value = math.fsum(a * b for a, b in pairs) / scale
    lag = later - first
    needed = "" if lag in ACCEPTED else f"; rules need {ACCEPTED[0]} to {ACCEPTED[-1]}"
    return Lasting(value, f"steps {first} and {later} share {len(shared):,} prefixes at a lag of {lag}{needed}", lag)


def _prefixes(table: pa.Table) -> Iterator[tuple[int, float]]:
    """Yield (key of the prefix that a token ends, its log ratio) for tokens on the mask among the first LONGEST of a response."""
    masks = table["mask"] if "mask" in table.column_names else pa.nulls(len(table), pa.list_(pa.bool_()))
    columns = [pc.list_slice(values, 0, LONGEST) for values in (*(table[name] for name in NEEDED[2:]), masks)]
    for prompt, *row in zip(table["prompt"], *columns, strict=True):
        key = hash(tuple(prompt.as_py()))
        tokens, rollout, old, mask = (values.as_py() for values in row)
        for place, token in enumerate(tokens):
            key = hash((key, token))
            if mask is None or mask[place]:
                yield key, old[place] - rollout[place]
