"""`faultline replay --recommend`: a bound per family, its interval over resampled responses, and a verdict."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from algos.diagnostics.pareto import pareto_k
from faultline.tools.replay.family import Family, Tokens
from faultline.tools.replay.thresholds import DEFAULT, Thresholds
from harness.dumps.schema import Responses

ADVISED = (
    Family("truncate", "token"),
    Family("mask", "token"),
    Family("truncate", "sequence"),
    Family("mask", "sequence"),
    Family("reject", "geometric"),
    Family("reject", "geometric", "k3"),
    Family("reject", "worst_token"),
)
RESAMPLES = 200
HEAVY = 0.7
"""Pareto k beyond which mean and ESS of untruncated importance weights cannot be estimated, arXiv 1507.02646 section 3.2.1."""
FEWEST = 10
"""Responses that must lie beyond a bound. With fewer, each of them moves the quantile."""
NULL_RATE = 1e-3
"""Share of the null's tokens that a proposed filter may reject."""


class Target(NamedTuple):
    """kept: share of tokens that a filter or mask must keep. ess: effective sample size of a truncated weight, as a share."""

    kept: float
    ess: float


class _Entries(NamedTuple):
    """Sums per response and bin of the statistic. Bin k holds what is inside bound k but not inside bound k − 1."""

    row: np.ndarray
    bin: np.ndarray
    sums: np.ndarray
    """[3, entries]: tokens, and for weights Σ n·ρ and Σ n·ρ²."""


class Advisor:
    """Takes in batches, then proposes bounds. Keeps one number per token and a few per response."""

    def __init__(self, target: Target):
        self.target = target
        self.entries: dict[Family, list[_Entries]] = {family: [] for family in ADVISED}
        self.logs: dict[str, list[np.ndarray]] = {"token": [], "sequence": []}
        self.responses = 0

    def add(self, responses: Responses) -> None:
        """Take in one batch."""
        tokens = Tokens(responses)
        for family in ADVISED:
            units = family.units(tokens)
            _, upper = family.bounds(DEFAULT)
            bins = np.searchsorted(upper, family.distance(units.values), "left")
            key = units.row.astype(np.int64) * (len(DEFAULT) + 1) + bins
            unique, inverse = np.unique(key, return_inverse=True)
            rho = units.values if family.action != "reject" else np.zeros(len(units.values))
            sums = [np.bincount(inverse, weights=units.size * rho**power, minlength=len(unique)) for power in (0, 1, 2)]
            row, bins = np.divmod(unique, len(DEFAULT) + 1)
            self.entries[family].append(_Entries(row + self.responses, bins, np.stack(sums)))
        self.logs["token"].append(tokens.l)
        self.logs["sequence"].append(tokens.in_responses.sum(tokens.l)[tokens.count > 0])
        self.responses += len(responses)

    def propose(self, null: Thresholds | None = None, seed: int = 0) -> pd.DataFrame:
        """A row per family: C, its 95 % interval, lower and upper bound, tokens kept, ESS, false rejections, verdict."""
        rng = np.random.default_rng(seed)
        draws = rng.multinomial(self.responses, np.full(self.responses, 1 / self.responses), size=RESAMPLES)
        tails = {level: float(pareto_k(torch.from_numpy(np.concatenate(logs)))) for level, logs in self.logs.items()}
        return pd.DataFrame([self._row(family, draws, tails, null) for family in ADVISED])

    def _row(self, family: Family, draws: np.ndarray, tails: dict[str, float], null: Thresholds | None) -> dict[str, object]:
        entries = self._joined(family)
        floor = _null_floor(family, null)
        place = self._place(family, _binned(entries, None), floor)
        resampled = [self._place(family, _binned(entries, draw), floor) for draw in draws]
        curve = _curve(family, _binned(entries, None))
        beyond = len(np.unique(entries.row[entries.bin > place])) if place is not None else 0
        row: dict[str, object] = {
            "family": family.name,
            "C": np.nan,
            "low": np.nan,
            "high": np.nan,
            "lower": np.nan,
            "upper": np.nan,
        }
        unneeded = self._unneeded(family, curve)
        at = len(DEFAULT) - 1 if place is None else place
        if place is not None:
            lower, upper = (float(bound[0]) for bound in family.bounds(DEFAULT[place : place + 1]))
            row |= {"C": DEFAULT[place], "lower": np.nan if np.isinf(lower) else lower, "upper": upper}
        bounds = [DEFAULT[p] for p in resampled if p is not None]
        if bounds and place is not None:
            row["low"], row["high"] = np.quantile(bounds, [0.025, 0.975])
        row |= {"tokens kept": curve.kept[at], "ESS": curve.ess[at]}
        if null is not None:
            row["false rejections"] = 1 - null.metrics(null.sums[family])["kept_tokens"][at]
        # A truncation is chosen by the ESS of weights at its own level. A share kept is a quantile, whatever the tail beyond it.
        tail = tails[family.level] if family.action == "truncate" else np.nan
        return row | {"verdict": _verdict(unneeded, place, beyond, tail, len(bounds) / len(resampled))}

    def _joined(self, family: Family) -> _Entries:
        parts = self.entries[family]
        return _Entries(*(np.concatenate([part[i] for part in parts], axis=-1) for i in range(3)))

    def _place(self, family: Family, sums: np.ndarray, floor: int) -> int | None:
        """The place of the proposed bound in DEFAULT. None when no bound is needed, or none reaches the target."""
        curve = _curve(family, sums)
        if self._unneeded(family, curve):
            return None
        if family.action == "truncate":
            good = np.flatnonzero(curve.ess >= self.target.ess)
            return int(good[-1]) if len(good) else None
        good = np.flatnonzero(curve.kept >= self.target.kept)
        return max(int(good[0]), floor) if len(good) else None

    def _unneeded(self, family: Family, curve: _Curve) -> str:
        """Why no bound is needed, else empty: the ESS is reached without a bound, or the smallest bound keeps the share."""
        if family.action == "truncate":
            return f"ESS {curve.ess[-1]:.3f} without" if curve.ess[-1] >= self.target.ess else ""
        return f"the smallest keeps {curve.kept[0]:.2%} of the tokens" if curve.kept[0] >= self.target.kept else ""


class _Curve(NamedTuple):
    kept: np.ndarray
    ess: np.ndarray


def _binned(entries: _Entries, draw: np.ndarray | None) -> np.ndarray:
    """[3, bins]: the sums of all responses, or of a resample in which response i stands draw[i] times."""
    times = 1.0 if draw is None else draw[entries.row].astype(np.float64)
    return np.stack([np.bincount(entries.bin, weights=times * part, minlength=len(DEFAULT) + 1) for part in entries.sums])


def _curve(family: Family, sums: np.ndarray) -> _Curve:
    """Share of tokens kept and ESS at each bound."""
    inside = np.cumsum(sums, axis=1)[:, :-1]
    tokens = sums[0].sum()
    if family.action == "truncate":
        above = tokens - inside[0]
        first, second = inside[1] + DEFAULT * above, inside[2] + DEFAULT**2 * above
        return _Curve(np.ones(len(DEFAULT)), first**2 / (second * tokens))
    kept = inside[0] / tokens
    if family.action == "reject":
        return _Curve(kept, kept)
    with np.errstate(invalid="ignore"):
        return _Curve(kept, np.nan_to_num(inside[1] ** 2 / (inside[2] * tokens)))


def _null_floor(family: Family, null: Thresholds | None) -> int:
    """The first place at which the family rejects no more than NULL_RATE of the null's tokens."""
    if null is None or family.action == "truncate":
        return 0
    good = np.flatnonzero(null.metrics(null.sums[family])["kept_tokens"] >= 1 - NULL_RATE)
    return int(good[0]) if len(good) else len(DEFAULT) - 1


def _verdict(unneeded: str, place: int | None, beyond: int, tail: float, bounded: float) -> str:
    """The first verdict that holds.

    beyond: responses beyond the bound. tail: Pareto k of the weights whose ESS chose the bound, NaN if a share kept chose it.
    bounded: share of the resamples with a bound. Without need of a bound the tail does not matter: the dump shows the ESS of
    batches of its size. With a bound, E[ρ] − E[min(ρ, C)] is its bias, and beyond HEAVY no feasible sample shows it.
    """
    if unneeded:
        return f"no bound needed: {unneeded}"
    if place is None:
        return "no bound reaches the target"
    if tail > HEAVY:
        return (
            f"not to be trusted: Pareto k = {tail:.2f} > {HEAVY}, no sample shows mean and ESS of the untruncated weights, "
            "nor the weight that C cuts off"
        )
    if beyond < FEWEST:
        return f"dump too small: {beyond} responses lie beyond it, {FEWEST} are needed"
    if bounded < 0.95:
        return f"dump too small: only {bounded:.0%} of the resamples have a bound"
    return "ok"
