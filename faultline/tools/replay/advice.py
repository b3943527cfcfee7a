"""Bounds proposed for a dump: one per kind of correction, with an interval over resampled prompts and a remark on its support."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from algos.diagnostics.pareto import pareto_k
from faultline.tools.replay.family import Family, FlatTokens, by_row
from faultline.tools.replay.intervals import Interval, MismatchSums
from faultline.tools.replay.thresholds import DEFAULT, Thresholds, share
from harness.dumps.schema import DumpedResponses

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
GROUPS = 1000
"""Number of groups of prompts that the bootstrap resamples whole, so that a larger dump takes no longer."""
HEAVY = 0.7
"""Pareto k above which the mean and ESS of untruncated importance weights cannot be estimated (arXiv 1507.02646, 3.2.1)."""
FEWEST = 10
"""Minimum number of responses beyond a proposed bound. With fewer, a single response would move the bound too much."""
NULL_RATE = 1e-3
"""Maximum share of tokens that a proposed filter may reject in the null, a dump of a run without mismatch."""
DOUBTS = ("not to be trusted", "dump too small")
"""First words of the remark on a proposed bound that the dump's data do not support."""


class Target(NamedTuple):
    """Target for proposed bounds. kept: share of tokens that a filter must keep. ess: ESS that a truncated weight must have."""

    kept: float
    ess: float


class Advice(NamedTuple):
    """Bounds that `faultline replay` proposes for each family of corrections, from the data of one dump of sampled responses.

    bounds: a row per family of corrections, which differ only in their bound, such as token truncation.
    intervals: metric of the mismatch -> its 95 % interval, from `MismatchSums.intervals`; empty for a single sample.
    samples: number of samples (prompts or responses) that were resampled.
    by_prompt: whether a sample is a prompt with all its responses. In a dump without a column `group`, it is one response.
    """

    bounds: pd.DataFrame
    intervals: dict[str, Interval]
    samples: int
    by_prompt: bool


class _Entries(NamedTuple):
    """Sums over tokens or responses, one entry per group of prompts and bin.

    Bin k has the tokens or responses that are inside bound k of DEFAULT but not inside bound k − 1.
    """

    group: np.ndarray
    bin: np.ndarray
    sums: np.ndarray
    """Sums [3, entries] over tokens or responses with n tokens and ratio ρ = π_old/μ: Σ n, Σ n·ρ, Σ n·ρ². For filters ρ is 0."""


class Advisor:
    """Collects a dump's batches, then proposes bounds of corrections. One number per token and a few per response stay in memory.

    A sample is a prompt of a step with all its responses, which share their mismatch. It is a response if the dump
    names no prompts. Sample i belongs to group i modulo GROUPS.
    """

    def __init__(self, target: Target):
        self.target = target
        self.entries: dict[Family, list[_Entries]] = {family: [] for family in ADVISED}
        self.farthest: dict[Family, list[np.ndarray]] = {family: [] for family in ADVISED}
        self.logs: dict[str, list[np.ndarray]] = {"token": [], "sequence": []}
        self.mismatch = MismatchSums(GROUPS)
        self.samples, self.by_prompt = 0, True

    def add(self, responses: DumpedResponses) -> None:
        """Add one batch of responses to the data for the proposed bounds. A response without tokens is not a sample."""
        tokens = FlatTokens(responses)
        present = tokens.count > 0
        number = np.zeros(len(present), dtype=np.int64)
        names = np.arange(present.sum()) if responses.group is None else responses.group[present]
        prompts, number[present] = np.unique(names, return_inverse=True)
        group = (self.samples + number) % GROUPS
        self.samples += len(prompts)
        self.by_prompt &= responses.group is not None
        self.mismatch.add(tokens, group)
        for family in ADVISED:
            units = family.units(tokens)
            _, upper = family.bounds(DEFAULT)
            bins = np.searchsorted(upper, family.distance(units.values), "left")
            rho = units.values if family.action != "reject" else np.zeros(len(units.values))
            sums = np.stack([units.size * rho**power for power in (0, 1, 2)])
            self.entries[family].append(_merged(_Entries(group[units.row], bins, sums)))
            self.farthest[family].append(by_row(np.maximum, bins, units.row))
        self.logs["token"].append(tokens.l)
        self.logs["sequence"].append(tokens.in_responses.sum(tokens.l)[present])

    def propose(self, null: Thresholds | None = None, seed: int = 0) -> Advice:
        """Propose a bound for each kind of correction, with a 95 % interval and a remark on its support by the data.

        null: sums of a dump without mismatch, of whose tokens a filter may reject at most NULL_RATE; None for no such limit.
        seed: fixes the resampling.
        """
        rng = np.random.default_rng(seed)
        groups = min(self.samples, GROUPS)
        draws = rng.multinomial(groups, np.full(groups, 1 / groups), size=RESAMPLES)
        tails = {level: float(pareto_k(torch.from_numpy(np.concatenate(logs)))) for level, logs in self.logs.items()}
        bounds = pd.DataFrame([self._row(family, draws, tails, null) for family in ADVISED])
        intervals = self.mismatch.intervals(draws) if self.samples > 1 else {}
        return Advice(bounds, intervals, self.samples, self.by_prompt)

    def _row(self, family: Family, draws: np.ndarray, tails: dict[str, float], null: Thresholds | None) -> dict[str, object]:
        entries = self._joined(family)
        floor = _null_floor(family, null)
        place = self._place(family, _binned(entries, None), floor)
        resampled = [self._place(family, _binned(entries, draw), floor) for draw in draws]
        curve = _curve(family, _binned(entries, None))
        beyond = int((np.concatenate(self.farthest[family]) > place).sum()) if place is not None else 0
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
        return _merged(_Entries(*(np.concatenate([part[i] for part in parts], axis=-1) for i in range(3))))

    def _place(self, family: Family, sums: np.ndarray, floor: int) -> int | None:
        """Index, in the grid of bounds DEFAULT, of the bound to propose; None if none is needed or none reaches the target.

        floor: lowest index that a filter may get."""
        curve = _curve(family, sums)
        if self._unneeded(family, curve):
            return None
        if family.action == "truncate":
            good = np.flatnonzero(curve.ess >= self.target.ess)
            return int(good[-1]) if len(good) else None
        good = np.flatnonzero(curve.kept >= self.target.kept)
        return max(int(good[0]), floor) if len(good) else None

    def _unneeded(self, family: Family, curve: _Curve) -> str:
        """Reason why a correction needs no bound: enough ESS without, or enough tokens kept by the smallest bound. Else ""."""
        if family.action == "truncate":
            return f"ESS {curve.ess[-1]:.3f} without" if curve.ess[-1] >= self.target.ess else ""
        return f"the smallest keeps {curve.kept[0]:.2%} of the tokens" if curve.kept[0] >= self.target.kept else ""


class _Curve(NamedTuple):
    kept: np.ndarray
    ess: np.ndarray


def _merged(entries: _Entries) -> _Entries:
    """Add up the sums of entries with the same group of prompts and the same bin of bounds."""
    key = entries.group.astype(np.int64) * (len(DEFAULT) + 1) + entries.bin
    unique, inverse = np.unique(key, return_inverse=True)
    group, bins = np.divmod(unique, len(DEFAULT) + 1)
    return _Entries(group, bins, np.stack([np.bincount(inverse, part, len(unique)) for part in entries.sums]))


def _binned(entries: _Entries, draw: np.ndarray | None) -> np.ndarray:
    """Σ n, Σ n·ρ, Σ n·ρ² (n tokens, ratio ρ) by bin, [3, bins]. draw [groups]: times that a resample has each group."""
    times = 1.0 if draw is None else draw[entries.group].astype(np.float64)
    return np.stack([np.bincount(entries.bin, weights=times * part, minlength=len(DEFAULT) + 1) for part in entries.sums])


def _curve(family: Family, sums: np.ndarray) -> _Curve:
    """Share of tokens kept, and ESS, at each bound in DEFAULT. sums [3, bins]: Σ n, Σ n·ρ, Σ n·ρ² (n tokens, ratio ρ) by bin."""
    inside = np.cumsum(sums, axis=1)[:, :-1]
    tokens = sums[0].sum()
    if family.action == "truncate":
        above = tokens - inside[0]
        first, second = inside[1] + DEFAULT * above, inside[2] + DEFAULT**2 * above
        return _Curve(np.ones(len(DEFAULT)), share(first**2, second * tokens))
    kept = inside[0] / tokens
    if family.action == "reject":
        return _Curve(kept, kept)
    return _Curve(kept, share(inside[1] ** 2, inside[2] * tokens))


def _null_floor(family: Family, null: Thresholds | None) -> int:
    """Index of the first bound of DEFAULT at which a filter rejects at most NULL_RATE of the tokens of `null`, else the last.

    null: sums of a dump without mismatch. The index is 0 if `null` is None or the family truncates.
    """
    if null is None or family.action == "truncate":
        return 0
    good = np.flatnonzero(null.metrics(null.sums[family])["kept_tokens"] >= 1 - NULL_RATE)
    return int(good[0]) if len(good) else len(DEFAULT) - 1


def _verdict(unneeded: str, place: int | None, beyond: int, tail: float, bounded: float) -> str:
    """Remark on how well the data support a bound, the first that applies. place: index of the bound; None: no bound.

    unneeded: why no bound is needed, or "". beyond: number of responses beyond the bound. tail: Pareto k of the weights whose ESS
    chose the bound, NaN for a filter. bounded: share of the resamples that have a bound. If no bound is needed, the tail does not
    count: the dump shows the ESS of batches of its size. A bound C has the bias E[ρ] − E[min(ρ, C)] with ρ = π_old/μ. With a tail
    above HEAVY no feasible sample shows this bias.
    """
    if unneeded:
        return f"enough without a bound: {unneeded}"
    if place is None:
        return "no bound reaches the target"
    if tail > HEAVY:
        return (
            f"{DOUBTS[0]}: Pareto k = {tail:.2f} > {HEAVY}, no sample shows mean and ESS of the untruncated weights, "
            "nor the weight that C cuts off"
        )
    if beyond < FEWEST:
        return f"{DOUBTS[1]}: {beyond} responses lie beyond it, {FEWEST} are needed"
    if bounded < 0.95:
        return f"{DOUBTS[1]}: only {bounded:.0%} of the resamples have a bound"
    return "ok"
