"""Evaluate every threshold of every family of corrections in one pass over a dump.

A family holds corrections that differ only in their bound. All its numbers are sums over units (tokens, segments or responses)
whose value lies inside the limits. So each threshold needs only the difference of two cumulative sums. The sums of batches
add up, so a dump larger than memory is read once, and the result is exact.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pandas as pd

from algos.ratios import LOG_RATIO_BOUND
from faultline.tools.replay.family import Family, FlatTokens, Units, by_row, families
from harness.dumps.schema import DumpedResponses

ROUND = (1.001, 1.01, 1.1, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Round values of the bound C of an importance weight, as are usual in practice."""


def _default() -> np.ndarray:
    bounds = np.exp(np.geomspace(1e-6, LOG_RATIO_BOUND, 1000))
    for c in ROUND:
        bounds[np.abs(np.log(np.log(bounds) / np.log(c))).argmin()] = c
    return bounds


DEFAULT = _default()
"""Default bounds C: 1,000 from 1 + 1e-6 to e²⁰, where ratios are clamped, 1.7 % apart in log C, ROUND among them."""

Sums = dict[str, np.ndarray]
"""Name -> number at each bound of a kind of correction, [K]. g, g_sq, g_exact: sums of g, g² and g·R over tokens, with the
effective weight g and the exact sequence weight R. kept, sequences: tokens and responses with g > 0. max: the largest g."""


class Thresholds:
    """Sums over batches for kinds of correction `chosen` (None: all) at bounds `c` [K]. Call `add` by batch, then `table`."""

    def __init__(self, c: np.ndarray = DEFAULT, chosen: list[Family] | None = None):
        self.c = np.asarray(c, dtype=np.float64)
        self.families = families(segments=True) if chosen is None else chosen
        self.sums: dict[Family, Sums] = {}
        self.tokens = self.responses = self.exact_sq = 0.0

    def add(self, responses: DumpedResponses) -> None:
        """Add one batch, in fp64. If any batch lacks segments (turns), the corrections by segment are left out."""
        if responses.segments is None:
            self.families = [family for family in self.families if not family.level.startswith("segment")]
            self.sums = {family: sums for family, sums in self.sums.items() if family in self.families}
        tokens = FlatTokens(responses)
        self.tokens += tokens.row.size
        self.responses += (tokens.count > 0).sum()
        self.exact_sq += (tokens.count * tokens.exact**2).sum()
        alike: dict[tuple[str, str], list[Family]] = {}  # they share their units
        for family in self.families:
            alike.setdefault((family.level, family.statistic), []).append(family)
        for group in alike.values():
            units = _Binned(group[0].units(tokens), tokens, [family.limits(self.c) for family in group])
            for family in group:
                before = self.sums.setdefault(family, {})
                for name, values in units.evaluate(family, self.c).items():
                    join = np.maximum if name == "max" else np.add
                    before[name] = join(before[name], values) if name in before else values

    def table(self) -> pd.DataFrame:
        """Table by kind of correction and bound: family, level, action, statistic, c, lower, upper and columns of `metrics`."""
        parts = []
        for family, sums in self.sums.items():
            lower, upper = family.bounds(self.c)
            named = {"family": family.name, "level": family.level, "action": family.action, "statistic": family.statistic}
            bounds = {"c": self.c, "lower": np.where(np.isinf(lower), np.nan, lower), "upper": upper}
            parts.append(pd.DataFrame(named | bounds | self.metrics(sums)))
        return pd.concat(parts, ignore_index=True)

    def metrics(self, sums: Sums) -> dict[str, np.ndarray]:
        """Return metrics of the effective weight g of tokens from `sums`.

        kept_tokens: share with g > 0. kept_sequences: share of responses with such a token. weight_mean, ess, weight_max and
        agreement are defined as in `effect.finish_effect`.
        """
        return {
            "kept_tokens": share(sums["kept"], self.tokens),
            "kept_sequences": share(sums["sequences"], self.responses),
            "weight_mean": share(sums["g"], self.tokens),
            "ess": share(sums["g"] ** 2, sums["g_sq"] * self.tokens),
            "weight_max": sums["max"],
            "agreement": share(sums["g_exact"] ** 2, sums["g_sq"] * self.exact_sq),
        }


class _Binned:
    """Cumulative sums over units (tokens, segments or responses) up to each limit of some corrections, [limits + 1].

    limits: (lower, upper) of each correction, [K] each, inclusive.
    """

    def __init__(self, units: Units, tokens: FlatTokens, limits: list[tuple[np.ndarray, np.ndarray]]):
        self.units, self.count = units, tokens.count
        self.ends = np.unique(np.concatenate([ends for lower, upper in limits for ends in (_below(lower), upper)]))
        self._bins = np.searchsorted(self.ends, units.values)
        self._exact = units.size * tokens.exact[units.row]
        self.number, self.size, self.size_exact = self._up_to(None), self._up_to(units.size), self._up_to(self._exact)

    def _up_to(self, terms: np.ndarray | None) -> np.ndarray:
        """Cumulative sum of `terms`, one per token, segment or response, up to each limit; for None the number of these."""
        return np.cumsum(np.bincount(self._bins, terms, len(self.ends) + 1), dtype=np.float64)

    def evaluate(self, family: Family, c: np.ndarray) -> Sums:
        """Return the sums of the correction `family` over all tokens, at each bound of `c`."""
        lower, upper = family.limits(c)
        lo, hi = np.searchsorted(self.ends, _below(lower)), np.searchsorted(self.ends, upper)
        tokens, units = self.size[hi] - self.size[lo], self.number[hi] - self.number[lo]
        if family.action == "reject":
            exact = self.size_exact[hi] - self.size_exact[lo]
            sequences, largest = self._responses(family, upper, units), (units > 0).astype(np.float64)
            return {"g": tokens, "g_sq": tokens, "g_exact": exact, "kept": tokens, "sequences": sequences, "max": largest}
        out = {name: sums[hi] - sums[lo] for name, sums in self._weighted.items()} | {"kept": tokens}
        # With `mask` or `truncate` the largest value inside is the largest weight; with `clip` the bounds count too.
        out["max"] = np.where(units > 0, self._largest[hi], 0.0)
        if family.action == "mask":
            return out | {"sequences": self._responses(family, upper, units)}
        above, below = self.size[-1] - self.size[hi], self.size[lo]
        floor = np.where(np.isinf(lower), 0.0, lower)
        out["g"] += upper * above + floor * below
        out["g_sq"] += upper**2 * above + floor**2 * below
        out["g_exact"] += upper * (self.size_exact[-1] - self.size_exact[hi]) + floor * self.size_exact[lo]
        out["max"] = np.where(above > 0, upper, np.maximum(out["max"], np.where(below > 0, floor, 0.0)))
        whole = np.full(len(c), self.size[-1])
        return out | {"kept": whole, "sequences": np.full(len(c), float((self.count > 0).sum()))}

    @cached_property
    def _weighted(self) -> Sums:
        """Cumulative sums of n·ρ, n·ρ², n·ρ·R over units of n tokens, ratio ρ and exact sequence weight R, up to each limit."""
        values = self.units.values
        scaled = self.units.size * values
        terms = {"g": scaled, "g_sq": scaled * values, "g_exact": self._exact * values}
        return {name: self._up_to(each) for name, each in terms.items()}

    @cached_property
    def _largest(self) -> np.ndarray:
        """Largest value of a unit (token, segment or response) up to each limit."""
        largest = np.zeros(len(self.ends) + 1)
        np.maximum.at(largest, self._bins, self.units.values)
        return np.maximum.accumulate(largest)

    def _responses(self, family: Family, upper: np.ndarray, units: np.ndarray) -> np.ndarray:
        """Number of responses with a unit inside the limits, per bound [K]. upper: limit of distance. units: units inside."""
        if len(self.units.row) == (self.count > 0).sum():  # a unit is a response
            return units.astype(np.float64)
        nearest = by_row(np.minimum, family.distance(self.units.values), self.units.row)
        return np.searchsorted(np.sort(nearest), upper, "right").astype(np.float64)


def share(part: np.ndarray, whole: np.ndarray | float) -> np.ndarray:
    """Return part / whole, and 0 where the whole is 0."""
    whole = np.broadcast_to(whole, part.shape)
    return np.divide(part, whole, out=np.zeros(part.shape), where=whole > 0)


def _below(limits: np.ndarray) -> np.ndarray:
    """Next smaller number below each limit. A value is less than the limit if and only if it is at most this number."""
    return np.nextafter(limits, -np.inf)
