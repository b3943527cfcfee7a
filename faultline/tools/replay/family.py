"""Families of corrections that differ only in their bound, such as token truncations.

A family computes a value for each unit (token, segment or response) and the bounds on that value. The values are those of
`algos.corrections.apply`, computed in numpy on flat arrays. So a dump needs no padding, and all families with the same units and
statistic share the values. A test compares them with `algos`, value by value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from algos.corrections.spec import Correction, Reject, Weight
from algos.ratios import LOG_RATIO_BOUND, excess_bound
from harness.dumps.schema import DumpedResponses

FARTHEST = 1e100
"""Bound in nats at which |log ρ| is clamped in K2. It is beyond every bound C, but sums of its square are finite."""


class Units(NamedTuple):
    """Units of a correction: tokens, responses or segments. Each has one weight, or one decision of a filter.

    values: numbers that are compared with the bounds. size: number of tokens. row: number of the response. All are [units].
    """

    values: np.ndarray
    size: np.ndarray
    row: np.ndarray


class Groups(NamedTuple):
    """Tokens in groups, such as responses. number: group of each token. size, row: length and response of each group."""

    number: np.ndarray
    size: np.ndarray
    row: np.ndarray

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sum values over the tokens of each group, [groups]."""
        return np.bincount(self.number, weights=values, minlength=len(self.row))


class FlatTokens:
    """A batch's tokens on the mask as flat fp64 arrays. l: log ratio log π_old − log μ in nats. row: number of the response.

    bound: largest |l| in sums of ρ², which depends on the dtype of the dump.
    """

    def __init__(self, responses: DumpedResponses):
        mask, lengths = responses.mask, np.diff(responses.offsets)
        self.rows = len(lengths)
        used = slice(None) if mask.all() else mask  # a view where nothing is left out
        self.row = np.repeat(np.arange(self.rows), lengths)[used]
        self.logp_rollout = responses.logp_rollout[used].astype(np.float64)
        self.l = responses.logp_old[used] - self.logp_rollout
        both = np.result_type(responses.logp_old, responses.logp_rollout)
        self.bound = excess_bound(torch.float64 if both == np.float64 else torch.float32)
        self.segments = None if responses.segments is None else responses.segments[used]
        self.count = np.bincount(self.row, minlength=self.rows)
        self._statistics: dict[str, np.ndarray] = {}

    @cached_property
    def bounded(self) -> np.ndarray:
        """Log ratio l of each token, clamped to ±LOG_RATIO_BOUND."""
        return np.clip(self.l, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)

    @cached_property
    def exact(self) -> np.ndarray:
        """Exact sequence weight R = exp(Σ l) of each response, [rows]."""
        return bounded_exp(self.in_responses.sum(self.l))

    def statistic(self, name: str) -> np.ndarray:
        """Value of the statistic `name` of STATISTICS per token, computed once."""
        if name not in self._statistics:
            self._statistics[name] = STATISTICS[name](self)
        return self._statistics[name]

    @cached_property
    def in_responses(self) -> Groups:
        """Groups of the tokens by response."""
        return Groups(self.row, self.count.astype(np.float64), np.arange(self.rows))

    @cached_property
    def in_segments(self) -> Groups:
        """Groups of the tokens by segment."""
        assert self.segments is not None, "families at the levels of segments are left out without segments"
        widths = np.ones(self.rows, dtype=np.int64)  # one width per response: many turns in one must not widen the others
        np.maximum.at(widths, self.row, self.segments + 1)
        start = np.cumsum(widths) - widths
        number = start[self.row] + self.segments
        size = np.bincount(number, minlength=widths.sum()).astype(np.float64)
        return Groups(number, size, np.repeat(np.arange(self.rows), widths))


STATISTICS: dict[str, Callable[[FlatTokens], np.ndarray]] = {
    "ratio": lambda tokens: tokens.l,  # log ρ: its level is taken before the exponential
    "k2": lambda tokens: np.clip(tokens.l, -FARTHEST, FARTHEST) ** 2 / 2,
    "k3": lambda tokens: np.expm1(tokens.bounded) - tokens.bounded,  # both terms bounded: never negative
    # π − μ from the larger of the two, so that nothing overflows and nothing cancels
    "prob_diff": lambda tokens: (
        -np.sign(tokens.l) * np.exp(tokens.logp_rollout + np.maximum(tokens.l, 0)) * np.expm1(-np.abs(tokens.l))
    ),
    "mult_error": lambda tokens: bounded_exp(np.abs(tokens.l)),
}
"""Statistic of a filter -> function that computes its value per token."""


class Family(NamedTuple):
    """A correction without its bound. action: truncate, clip or mask a weight, or reject. level: token, sequence or the like.

    One number C ≥ 1 gives the bounds of the statistic. ratio: [1/C, C], for truncate only C. mult_error: C. k2: ½·log²C. k3: C
    − 1 − log C. prob_diff: ±(1 − 1/C).
    """

    action: str
    level: str
    statistic: str = "ratio"

    @property
    def name(self) -> str:
        return "-".join([self.action, self.level, *([self.statistic] if self.statistic != "ratio" else [])])

    def bounds(self, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bounds (lower, upper) that a config gives the statistic for the threshold C; −inf for no bound."""
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
        """The correction of this kind that has the bound C, as a config specifies it."""
        lower, upper = (float(bound[0]) for bound in self.bounds(np.array([float(c)])))
        settings: dict[str, Any] = {"level": self.level, "lower": None if lower == -np.inf else lower, "upper": upper}
        if self.action == "reject":
            return Correction(reject={self.name: Reject(**settings | {"statistic": self.statistic})})
        return Correction(weight=Weight(**settings | {"action": self.action}))

    def units(self, tokens: FlatTokens) -> Units:
        """Tokens, segments or responses, by level, with the values that bounds limit. A response without tokens gives none."""
        values = tokens.statistic(self.statistic)
        if self.level == "token":
            units = Units(values, np.ones(len(values)), tokens.row)
        elif self.level == "worst_token":  # |·| since its bounds are symmetric: [1/C, C], or ±
            size, row = tokens.in_responses.size, tokens.in_responses.row
            units = Units(by_row(np.maximum, np.abs(values), tokens.row), size[size > 0], row[size > 0])
        else:
            groups = tokens.in_segments if self.level.startswith("segment") else tokens.in_responses
            present = groups.size > 0
            units = Units(groups.sum(values)[present], groups.size[present], groups.row[present])
            if self.level in ("geometric", "segment_geometric"):
                units = units._replace(values=units.values / units.size)
        return units._replace(values=bounded_exp(units.values)) if self.statistic == "ratio" else units

    def limits(self, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Limits (lower, upper) that C gives the values of `units`: those of `bounds`, but no lower one at level worst_token."""
        lower, upper = self.bounds(c)
        return (np.full_like(c, -np.inf) if self.level == "worst_token" else lower), upper

    def distance(self, values: np.ndarray) -> np.ndarray:
        """Distance d of each token, segment or response, whose value lies inside the limits at C if and only if d ≤ upper(C)."""
        if self.statistic == "ratio" and self.action != "truncate":
            return np.maximum(values, 1 / values)
        return np.abs(values) if self.statistic == "prob_diff" else values


def families(segments: bool) -> list[Family]:
    """List all kinds of correction, without their bound; those at the level of segments only if the dump has segments.

    Duplicates are left out: at levels token and worst_token, k2 and mult_error order the tokens as the two-sided ratio does.
    Statistics whose sum over tokens does not fit a bound by C are left out too. At levels sequence and segment, prob_diff may
    leave ±1, its bound at C = ∞, and mult_error, which grows with the length, is refused by `Reject`.
    """
    levels = ["token", "sequence", "geometric", *(["segment", "segment_geometric"] if segments else [])]
    weights = [Family(action, level) for level in levels for action in ("truncate", "clip", "mask")]
    pairs = [(level, statistic) for level in [*levels, "worst_token"] for statistic in STATISTICS]
    return weights + [Family("reject", level, statistic) for level, statistic in pairs if _is_distinct(level, statistic)]


def _is_distinct(level: str, statistic: str) -> bool:
    if statistic in ("k2", "mult_error") and level in ("token", "worst_token"):
        return False
    return statistic not in ("prob_diff", "mult_error") or level not in ("sequence", "segment")


def by_row(reduce: np.ufunc, values: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Apply `reduce` to the values of each response that has any. row: number of the response of each value, ascending."""
    starts = np.flatnonzero(np.diff(row, prepend=-1))
    return reduce.reduceat(values, starts) if len(starts) else values


def bounded_exp(values: np.ndarray) -> np.ndarray:
    """Compute exp with its argument clamped to ±LOG_RATIO_BOUND."""
    return np.exp(np.clip(values, -LOG_RATIO_BOUND, LOG_RATIO_BOUND))
