"""Every threshold of every family of corrections at once: sort once, cumulative sums, and a search per threshold.

All numbers of a family are sums over units whose value lies inside the limits. With the units sorted and their cumulative sums
taken, each threshold costs two searches. Sums over batches add up: a dump larger than memory is read once, and the result is
exact.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pandas as pd

from algos.ratios import LOG_RATIO_BOUND
from faultline.tools.replay.family import Family, Tokens, Units, by_row, families
from harness.dumps.schema import Responses

ROUND = (1.001, 1.01, 1.1, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Bounds that people use."""


def _default() -> np.ndarray:
    bounds = np.exp(np.geomspace(1e-6, LOG_RATIO_BOUND, 1000))
    for c in ROUND:
        bounds[np.abs(np.log(np.log(bounds) / np.log(c))).argmin()] = c
    return bounds


DEFAULT = _default()
"""1,000 bounds C from 1 + 1e-6 to e²⁰, beyond which ratios are clamped; 1.7 % apart in log C. The ROUND ones are among them."""

Sums = dict[str, np.ndarray]
"""Σ g, Σ g², Σ g·R, tokens and responses kept, and the largest g, at each bound, [K]."""


class Thresholds:
    """Sums over batches for the bounds `c` [K] of families, by default all. `add` batches, then `table`."""

    def __init__(self, c: np.ndarray = DEFAULT, chosen: list[Family] | None = None):
        self.c = np.asarray(c, dtype=np.float64)
        self.families = families(segments=True) if chosen is None else chosen
        self.sums: dict[Family, Sums] = {}
        self.tokens = self.responses = self.exact_sq = 0.0

    def add(self, responses: Responses) -> None:
        """Take in one batch, in fp64. Once a batch has no segments, the families at their levels are left out."""
        if responses.segments is None:
            self.families = [family for family in self.families if not family.level.startswith("segment")]
            self.sums = {family: sums for family, sums in self.sums.items() if family in self.families}
        tokens = Tokens(responses)
        self.tokens += tokens.row.size
        self.responses += (tokens.count > 0).sum()
        self.exact_sq += (tokens.count * tokens.exact**2).sum()
        alike: dict[tuple[str, str], list[Family]] = {}  # they share their units
        for family in self.families:
            alike.setdefault((family.level, family.statistic), []).append(family)
        for group in alike.values():
            units = _Sorted(group[0].units(tokens), tokens)
            for family in group:
                before = self.sums.setdefault(family, {})
                for name, values in units.evaluate(family, self.c).items():
                    join = np.maximum if name == "max" else np.add
                    before[name] = join(before[name], values) if name in before else values

    def table(self) -> pd.DataFrame:
        """A row per family and bound: family, level, action, statistic, c, lower, upper and the columns of `metrics`."""
        parts = []
        for family, sums in self.sums.items():
            lower, upper = family.bounds(self.c)
            named = {"family": family.name, "level": family.level, "action": family.action, "statistic": family.statistic}
            bounds = {"c": self.c, "lower": np.where(np.isinf(lower), np.nan, lower), "upper": upper}
            parts.append(pd.DataFrame(named | bounds | self.metrics(sums)))
        return pd.concat(parts, ignore_index=True)

    def metrics(self, sums: Sums) -> dict[str, np.ndarray]:
        """kept_tokens (share with g > 0), kept_sequences (share with such a token), weight_mean, ess, weight_max, agreement.

        They are those of `effect.finish_effect`.
        """
        return {
            "kept_tokens": share(sums["kept"], self.tokens),
            "kept_sequences": share(sums["sequences"], self.responses),
            "weight_mean": share(sums["g"], self.tokens),
            "ess": share(sums["g"] ** 2, sums["g_sq"] * self.tokens),
            "weight_max": sums["max"],
            "agreement": share(sums["g_exact"] ** 2, sums["g_sq"] * self.exact_sq),
        }


class _Sorted:
    """Units in the order of their values, with cumulative sums from 0: cumulative[k] is over the k smallest."""

    def __init__(self, units: Units, tokens: Tokens):
        self.units, self.count = units, tokens.count
        order = np.argsort(units.values)
        self.values, self._n, self._exact = units.values[order], units.size[order], tokens.exact[units.row[order]]
        self.size, self.size_exact = _cumulative(self._n), _cumulative(self._n * self._exact)

    def evaluate(self, family: Family, c: np.ndarray) -> Sums:
        """The sums at the bounds `c` of a family with these units."""
        lower, upper = family.limits(c)
        lo, hi = np.searchsorted(self.values, lower, "left"), np.searchsorted(self.values, upper, "right")
        tokens = self.size[hi] - self.size[lo]
        if family.action == "reject":
            exact = self.size_exact[hi] - self.size_exact[lo]
            sequences, largest = self._responses(family, upper, hi - lo), (hi > lo).astype(np.float64)
            return {"g": tokens, "g_sq": tokens, "g_exact": exact, "kept": tokens, "sequences": sequences, "max": largest}
        out = {name: cumulative[hi] - cumulative[lo] for name, cumulative in self._weighted.items()} | {"kept": tokens}
        # With `mask` or `truncate` the largest value of each range is the one before its end; with `clip` the bounds count too.
        out["max"] = np.where(hi > lo, self.values[np.maximum(hi - 1, 0)] if len(self.values) else 0.0, 0.0)
        if family.action == "mask":
            return out | {"sequences": self._responses(family, upper, hi - lo)}
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
        """Cumulative sums of n·ρ, n·ρ² and n·ρ·R."""
        scaled = self._n * self.values
        terms = {"g": scaled, "g_sq": scaled * self.values, "g_exact": scaled * self._exact}
        return {name: _cumulative(values) for name, values in terms.items()}

    def _responses(self, family: Family, upper: np.ndarray, units: np.ndarray) -> np.ndarray:
        """Responses with a unit inside the limits."""
        if len(self.units.row) == (self.count > 0).sum():  # a unit is a response
            return units.astype(np.float64)
        nearest = by_row(np.minimum, family.distance(self.units.values), self.units.row)
        return np.searchsorted(np.sort(nearest), upper, "right").astype(np.float64)


def share(part: np.ndarray, whole: np.ndarray | float) -> np.ndarray:
    """part/whole, 0 where the whole is 0."""
    whole = np.broadcast_to(whole, part.shape)
    return np.divide(part, whole, out=np.zeros(part.shape), where=whole > 0)


def _cumulative(values: np.ndarray) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum(values)])
