"""The diagnosis of a dump's log-probabilities, before any correction is proposed; see docs/diagnosis.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from algos.batch import Batch
from algos.diagnostics import rounding
from algos.diagnostics.identity import by_place
from algos.diagnostics.pairs import LogpPairs, Mean
from algos.faults.diagnose import Diagnosis, diagnose
from faultline.tools.replay.effect import padded, padded_column
from harness.dumps.schema import DumpedResponses
from harness.errors import UserError
from harness.run.folder import RunFolder

CELLS = 2**22
"""Maximum number of padded values in a diagnosis. A larger dump is thinned to every second batch or prompt, repeatedly."""


class Known(NamedTuple):
    """Facts of a run's config that explain a difference between log μ and log π_old.

    precision: the coarser precision of sampler and trainer, a name of `rounding.K3`; None if it was not measured. behind: minimum
    number of steps that the sampler's weights are behind. noise: whether the run adds noise to its sampler on purpose.
    """

    precision: str | None = None
    behind: int = 0
    noise: bool = False


def known(path: Path) -> Known:
    """Read the facts from the config of the run that a dump belongs to. path: a run folder, its dumps or one of their files."""
    run = next((f for f in (path, *path.parents[:2]) if (f / "config.json").is_file() and (f / "dumps").is_dir()), None)
    if run is None:
        return Known()
    try:
        config = RunFolder(run).read("config.json")
    except UserError:
        return Known()  # the dump is judged without the damaged config
    rollout, actor = _part(config, "rollout"), _part(config, "actor")
    engine = _part(rollout, "engine")
    noise = any(engine.get(name) for name in ("noise", "router_noise"))
    behind = rollout.get("staleness")
    behind = behind if isinstance(behind, int) else 0
    if noise or behind or rollout.get("partial_tokens") or "num_experts" in _part(config, "model"):
        return Known(None, behind, noise)  # K3 is then not that of rounding alone, or rounding flips experts
    sampler = _part(rollout, "precision").get("name") if rollout.get("kv_cache") == "compute" else "fp8_cache"
    trainer = _part(actor, "precision").get("name") or actor.get("dtype")
    if not {str(sampler), str(trainer)} <= rounding.K3.keys():
        return Known()
    return Known(max(str(sampler), str(trainer), key=lambda name: rounding.K3[name]))


def _part(config: dict[str, Any], name: str) -> dict[str, Any]:
    part = config.get(name)
    return part if isinstance(part, dict) else {}


class Evidence:
    """Collect the batches of a dump, then diagnose them together."""

    def __init__(self, facts: Known):
        self.known = facts
        self.batches: list[DumpedResponses] = []
        self.lags: list[np.ndarray | None] = []
        self.seen, self.every = 0, 1

    def add(self, responses: DumpedResponses) -> None:
        """Add one batch, or skip it if the dump is too large to be diagnosed whole."""
        self.seen += 1
        if (self.seen - 1) % self.every:
            return
        self.batches.append(_thinned(responses))
        self.lags.append(self._lag(self.batches[-1]))
        while len(self.batches) > 1 and self._cells() > CELLS:
            self.batches, self.lags, self.every = self.batches[::2], self.lags[::2], 2 * self.every

    def _cells(self) -> int:
        return sum(map(len, self.batches)) * max(int(np.diff(one.offsets).max(initial=0)) for one in self.batches)

    def _lag(self, responses: DumpedResponses) -> np.ndarray | None:
        """Number of versions that each token's weights are known to be behind; None if nothing shows that they are."""
        version = responses.version
        if version is None:
            return np.full(len(responses.mask), self.known.behind) if self.known.behind else None
        lag = version[responses.mask].max(initial=0) - version + self.known.behind
        return lag if lag[responses.mask].any() else None

    def diagnosis(self) -> tuple[Diagnosis, list[Mean]]:
        """Diagnose the batches. Returns the diagnosis, and the mean ratio by position in bins that end at 2ᵇ tokens."""
        whole = _joined(self.batches)
        batch = padded(whole)
        lag = None
        if any(lag is not None for lag in self.lags):
            pairs = zip(self.lags, self.batches, strict=True)
            lag = padded_column(
                whole, np.concatenate([np.zeros(len(one.mask), np.int64) if own is None else own for own, one in pairs])
            )
        tokens = None if whole.tokens is None else padded_column(whole, whole.tokens)
        return self._explained(batch, lag, tokens), by_place(LogpPairs(batch))

    def _explained(self, batch: Batch, lag: Tensor | None, tokens: Tensor | None) -> Diagnosis:
        found = diagnose(batch, precision=None if lag is not None else self.known.precision, lag=lag, tokens=tokens)
        if found.question != "b" or not self.known.noise:
            return found
        return found._replace(
            kind="consistent", fault=None, question=None, evidence="this run adds noise to its sampler", check={}, severity=None
        )


def _thinned(responses: DumpedResponses) -> DumpedResponses:
    """Keep every k-th prompt, or every k-th response if prompts are unknown, so that at most CELLS values remain."""
    lengths = np.diff(responses.offsets)
    times = -(-len(responses) * int(lengths.max(initial=0)) // CELLS)
    if times <= 1:
        return responses
    number = np.arange(len(responses)) if responses.group is None else np.unique(responses.group, return_inverse=True)[1]
    return responses.rows(np.flatnonzero(number % times == 0))


def _joined(batches: list[DumpedResponses]) -> DumpedResponses:
    """Join batches into one in which prompts of different batches differ in number. A column that a batch lacks is None."""
    columns: dict[str, Any] = {}
    starts = np.cumsum([0, *map(len, batches[:-1])])
    for name in DumpedResponses._fields[1:]:
        parts = [getattr(one, name) for one in batches]
        if any(part is None for part in parts):
            columns[name] = None
            continue
        if name == "group":
            parts = [start + np.unique(part, return_inverse=True)[1] for start, part in zip(starts, parts, strict=True)]
        columns[name] = np.concatenate(parts)
    lengths = np.concatenate([np.diff(one.offsets) for one in batches])
    return DumpedResponses(np.concatenate([[0], np.cumsum(lengths)]), **columns)
