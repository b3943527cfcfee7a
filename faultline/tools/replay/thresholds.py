"""Every threshold of every family of corrections at once: sort once, cumulative sums, and a search per threshold.

A family is a correction but for its bound C ≥ 1. All its numbers are sums over units (tokens, responses or segments) whose
statistic lies below the bound, so with the units sorted and their cumulative sums taken, each threshold costs two searches.
Sums over batches add up: a dump larger than memory is read once, and the result is exact, not a sketch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd

from algos.corrections.spec import Correction, Reject, Weight
from algos.ratios import LOG_RATIO_BOUND
from harness.dumps.schema import Responses

DEFAULT = np.exp(np.geomspace(1e-6, LOG_RATIO_BOUND, 1000))
"""1,000 bounds C, evenly spaced in log log C: from 1 + 1e-6 to e²⁰, beyond which ratios are clamped; 1.7 % apart in log C."""


class Family(NamedTuple):
    """A correction but for its bound: action truncate, clip or mask of the weight, or reject by `statistic`; both at `level`.

    The one number C ≥ 1 gives the bounds. Ratio: [1/C, C], truncate only C. mult_error: C. k2: ½·log²C. k3: C − 1 − log C.
    prob_diff: ±(1 − 1/C).
    """

    action: str
    level: str
    statistic: str = "ratio"

    @property
    def name(self) -> str:
        return "-".join([self.action, self.level, *([self.statistic] if self.statistic != "ratio" else [])])

    def bounds(self, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(lower, upper) of the statistic at C; −inf for none."""
        none = np.full_like(c, -np.inf)
        match self.statistic:
            case "k2":
                return none, np.log(c) ** 2 / 2
            case "k3":
                return none, c - 1 - np.log(c)
            case "mult_error":
                return none, c
            case "prob_diff":
                return -(1 - 1 / c), 1 - 1 / c
        return (none if self.action == "truncate" else 1 / c), c

    def at(self, c: float) -> Correction:
        """The correction with bound C, as a config would say it."""
        lower, upper = (float(bound[0]) for bound in self.bounds(np.array([float(c)])))
        bounds = {"lower": None if lower == -np.inf else lower, "upper": upper}
        if self.action == "reject":
            return Correction(reject={self.name: Reject(self.level, self.statistic, **bounds)})
        return Correction(weight=Weight(self.level, self.action, **bounds))


def families(segments: bool) -> list[Family]:
    """All of them; the levels of segments only where the dump has segments.

    Left out are repetitions: at level token and worst_token, k2 and mult_error order the tokens as the two-sided ratio does.
    And sums that C does not scale: at level sequence and segment, prob_diff may leave ±1, the bound at C = ∞, and mult_error
    grows with the length, so that `Reject` refuses it.
    """
    levels = ["token", "sequence", "geometric", *(["segment", "segment_geometric"] if segments else [])]
    found = [Family(action, level) for level in levels for action in ("truncate", "clip", "mask")]
    for level in [*levels, "worst_token"]:
        found += [Family("reject", level, s) for s in ("ratio", "k2", "k3", "prob_diff", "mult_error") if _distinct(level, s)]
    return found


def _distinct(level: str, statistic: str) -> bool:
    if statistic in ("k2", "mult_error") and level in ("token", "worst_token"):
        return False
    return statistic not in ("prob_diff", "mult_error") or level not in ("sequence", "segment")


class Units(NamedTuple):
    """What shares one weight or one filter's verdict. values: the statistic; size: tokens; row: of the response."""

    values: np.ndarray
    size: np.ndarray
    row: np.ndarray


class Thresholds:
    """Sums over batches for the bounds `c` ([K], ascending or not) of `families`. `add` batches, then `table`."""

    def __init__(self, c: np.ndarray = DEFAULT, chosen: list[Family] | None = None):
        self.c, self.families = np.asarray(c, dtype=np.float64), chosen
        self.sums: dict[Family, dict[str, np.ndarray]] = {}
        self.tokens = self.responses = self.exact_sq = 0.0

    def add(self, responses: Responses) -> None:
        """Take in one batch, in fp64. Once a batch has no segments, the families at their levels are left out."""
        if self.families is None:
            self.families = families(segments=True)
        if responses.segments is None:
            self.families = [family for family in self.families if not family.level.startswith("segment")]
            self.sums = {family: sums for family, sums in self.sums.items() if family in self.families}
        tokens = _Tokens(responses)
        self.tokens += tokens.row.size
        self.responses += (tokens.count > 0).sum()
        self.exact_sq += (tokens.count * tokens.exact**2).sum()
        wanted: dict[tuple[str, str], list[Family]] = {}
        for family in self.families:
            wanted.setdefault((family.level, family.statistic), []).append(family)
        for (level, statistic), group in wanted.items():
            units = tokens.units(level, statistic)
            sums = _Sorted(units, tokens.exact, tokens.count)
            for family in group:
                found = sums.evaluate(family, self.c)
                before = self.sums.setdefault(family, {})
                for name, values in found.items():
                    join = np.maximum if name == "max" else np.add
                    before[name] = join(before[name], values) if name in before else values

    def table(self) -> pd.DataFrame:
        """A row per family and bound: family, level, action, statistic, c, lower, upper and the metrics of `effect`."""
        parts = []
        for family, sums in self.sums.items():
            lower, upper = family.bounds(self.c)
            parts.append(
                pd.DataFrame(
                    {
                        "family": family.name,
                        "level": family.level,
                        "action": family.action,
                        "statistic": family.statistic,
                        "c": self.c,
                        "lower": np.where(np.isinf(lower), np.nan, lower),
                        "upper": upper,
                        **self.metrics(sums),
                    }
                )
            )
        return pd.concat(parts, ignore_index=True)

    def metrics(self, sums: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """kept_tokens (share with g > 0), kept_sequences (share with such a token), weight_mean, ess, weight_max, agreement."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return {
                "kept_tokens": sums["kept"] / self.tokens,
                "kept_sequences": sums["sequences"] / self.responses,
                "weight_mean": sums["g"] / self.tokens,
                "ess": np.nan_to_num(sums["g"] ** 2 / (sums["g_sq"] * self.tokens)),
                "weight_max": sums["max"],
                "agreement": np.nan_to_num(sums["g_exact"] ** 2 / (sums["g_sq"] * self.exact_sq)),
            }


class _Tokens:
    """The response tokens of a batch, flat, and their units."""

    def __init__(self, responses: Responses):
        lengths = np.diff(responses.offsets)
        self.row = np.repeat(np.arange(len(lengths)), lengths)[responses.mask]
        rollout = responses.logp_rollout[responses.mask].astype(np.float64)
        self.l = responses.logp_old[responses.mask].astype(np.float64) - rollout
        self.rollout = rollout
        self.segments = None if responses.segments is None else responses.segments[responses.mask]
        self.rows = len(lengths)
        self.count = np.bincount(self.row, minlength=self.rows)
        self.exact = _bounded_exp(self.sum(self.l))
        self._statistics: dict[str, np.ndarray] = {}

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Per response."""
        return np.bincount(self.row, weights=values, minlength=self.rows)

    def units(self, level: str, statistic: str) -> Units:
        """The units of a level with the values that a bound is compared with. Responses without tokens have no unit."""
        if statistic not in self._statistics:
            self._statistics[statistic] = self._per_token(statistic)
        per_token = self._statistics[statistic]
        if level == "token":
            return Units(_bounded_exp(per_token) if statistic == "ratio" else per_token, np.ones(len(self.l)), self.row)
        if level == "worst_token":
            if statistic == "ratio":
                per_token = _bounded_exp(np.abs(self.l))  # [1/C, C] for all tokens: the largest max(ρ, 1/ρ)
            if statistic == "prob_diff":
                per_token = np.abs(per_token)  # the bounds are symmetric
            return Units(
                _by_row(np.maximum, per_token, self.row),
                self.count[self.count > 0].astype(np.float64),
                np.flatnonzero(self.count),
            )
        if level in ("sequence", "geometric"):
            values, size, row = self.sum(per_token), self.count, np.arange(self.rows)
        else:
            width = int(self.segments.max(initial=0)) + 1
            key = self.row * width + self.segments
            values = np.bincount(key, weights=per_token, minlength=self.rows * width)
            size = np.bincount(key, minlength=self.rows * width)
            row = np.arange(self.rows * width) // width
        if level in ("geometric", "segment_geometric"):
            values = values / np.maximum(size, 1)
        if statistic == "ratio":
            values = _bounded_exp(values)
        here = size > 0
        return Units(values[here], size[here].astype(np.float64), row[here])

    def _per_token(self, statistic: str) -> np.ndarray:
        match statistic:
            case "k2":
                return self.l**2 / 2
            case "k3":
                return np.expm1(np.clip(self.l, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)) - self.l
            case "mult_error":
                return _bounded_exp(np.abs(self.l))
            case "prob_diff":
                return np.exp(self.rollout) * np.expm1(self.l)
        return self.l


class _Sorted:
    """Units in the order of their values, with cumulative sums from 0: cumulative[k] is over the k smallest."""

    def __init__(self, units: Units, exact: np.ndarray, count: np.ndarray):
        self.units, self.count = units, count
        order = np.argsort(units.values)
        self.values, size, exact = units.values[order], units.size[order], exact[units.row[order]]
        self.size, self.size_exact = _cumulative(size), _cumulative(size * exact)
        self._exact, self._size = exact, size

    def evaluate(self, family: Family, c: np.ndarray) -> dict[str, np.ndarray]:
        """Sums of g, g², g·R, tokens with g > 0, responses with such a token, and the largest g, for each bound; [K]."""
        lower, upper = family.bounds(c)
        if family.level == "worst_token" and family.statistic == "ratio":
            lower = np.full_like(c, -np.inf)  # the value is max(ρ, 1/ρ) already
        lo, hi = np.searchsorted(self.values, lower, "left"), np.searchsorted(self.values, upper, "right")
        inside = lambda cumulative: cumulative[hi] - cumulative[lo]  # noqa: E731
        tokens = inside(self.size)
        if family.action == "reject":
            return {
                "g": tokens,
                "g_sq": tokens,
                "g_exact": inside(self.size_exact),
                "kept": tokens,
                "sequences": self._responses(family, upper, hi - lo),
                "max": (hi > lo).astype(np.float64),
            }
        first, second, third = self._weighted()
        out = {"g": inside(first), "g_sq": inside(second), "g_exact": inside(third), "kept": tokens}
        # With `mask` or `truncate` a largest value of each range is the one before its end; with `clip` the bounds count too.
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

    def _weighted(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Cumulative sums of n·ρ, n·ρ² and n·ρ·R; made when a family first asks."""
        if not hasattr(self, "_sums"):
            scaled = self._size * self.values
            self._sums = _cumulative(scaled), _cumulative(scaled * self.values), _cumulative(scaled * self._exact)
        return self._sums

    def _responses(self, family: Family, upper: np.ndarray, units: np.ndarray) -> np.ndarray:
        """Responses with a unit inside the bounds."""
        if len(self.units.row) == (self.count > 0).sum():  # a unit is a response
            return units.astype(np.float64)
        best = _by_row(np.minimum, closest(family, self.units.values), self.units.row)
        return np.searchsorted(np.sort(best), upper, "right").astype(np.float64)


def all_thresholds(batches: Iterable[Responses], c: np.ndarray = DEFAULT, chosen: list[Family] | None = None) -> Thresholds:
    """The thresholds `c` over all batches, each read once."""
    thresholds = Thresholds(c, chosen)
    for responses in batches:
        thresholds.add(responses)
    return thresholds


def units_of(responses: Responses, family: Family) -> Units:
    """The units of a batch whose values a family compares with its bounds."""
    return _Tokens(responses).units(family.level, family.statistic)


def log_ratios(responses: Responses) -> dict[str, np.ndarray]:
    """log ρ at levels token and sequence, nats, not clamped; of responses with tokens."""
    tokens = _Tokens(responses)
    return {"token": tokens.l, "sequence": tokens.sum(tokens.l)[tokens.count > 0]}


def closest(family: Family, values: np.ndarray) -> np.ndarray:
    """Values v' such that v lies inside the bounds at C if and only if v' ≤ upper(C)."""
    if family.statistic == "ratio" and family.action != "truncate":  # [1/C, C]
        return np.maximum(values, 1 / values)
    return np.abs(values) if family.statistic == "prob_diff" else values  # ± the same bound


def _by_row(reduce: np.ufunc, values: np.ndarray, row: np.ndarray) -> np.ndarray:
    """`reduce` over the values of each row that has any; row ascends."""
    starts = np.flatnonzero(np.diff(row, prepend=-1))
    return reduce.reduceat(values, starts) if len(starts) else values


def _cumulative(values: np.ndarray) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum(values)])


def _bounded_exp(values: np.ndarray) -> np.ndarray:
    return np.exp(np.clip(values, -LOG_RATIO_BOUND, LOG_RATIO_BOUND))
