"""The diagnosis of a dump's log-probabilities, before any correction is proposed; see docs/diagnosis.md."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from algos.diagnostics.evidence import Predicted
from algos.diagnostics.pairs import FEWEST, LogpPairs
from algos.faults.diagnose import Diagnosis
from faultline.tools.replay.effect import padded, padded_column
from faultline.tools.replay.sources import Dump
from harness.diagnosis import CELLS, RunFacts, run_facts
from harness.dumps.schema import DumpedResponses
from harness.errors import UserError
from harness.run.folder import RunFolder

UNCOMPARED = "K3 was not compared with rounding: give --precision or --baseline."
"""Note on a dump without a fault if neither its precision nor a baseline dump is known. A K3 up to 1 then counts as rounding."""
LAGGING = "All responses begin with older weights: --precision and --baseline were not used."
"""Note on a dump without a fault if its precision or a baseline is known, and no token is fresh (`algos.faults.diagnose`)."""
NOTES = (UNCOMPARED, LAGGING)
"""The notes on a K3 that was not compared. A verdict has one among its limitations; the terminal prints it."""
UNTESTED = "Not tested well, for lack of"
"""Begin of the note on tests that need columns which the dump lacks. The terminal prints it in any case too."""


def known(path: Path, precision: str | None = None, baseline: Path | None = None) -> RunFacts:
    """Return what explains the mismatch of a dump, read from the config of its run: precision, lag and noise.

    path: a run folder, its dumps or one of their files. precision: a name of `rounding.K3`, which replaces that of the config.
    baseline: a dump of the same model without a fault. Raises UserError on a baseline with a fault.
    """
    facts = _configured(path)
    if precision is not None:
        facts = facts._replace(precision=precision)
    return facts if baseline is None else facts._replace(baseline=_k3(baseline))


def _k3(baseline: Path) -> float:
    """K3 of the dump `baseline`, in nats per token. Raises UserError if the dump has a fault."""
    evidence = Evidence(_configured(baseline))
    for responses in Dump(baseline).batches():
        evidence.add(responses)
    found, _ = evidence.diagnosis()
    if found.kind != "consistent":
        raise UserError(f"--baseline {baseline}: {found}; give a dump of this model without a fault")
    if evidence.copied(found):
        raise UserError(f"--baseline {baseline}: every ratio is exactly 1; give a dump whose logp_old the trainer computed")
    if not found.power < math.inf:
        raise UserError(f"--baseline {baseline}: too few prompts to tell whether it has a fault; give at least {FEWEST}")
    return found.statistics["tails/k3"]


def of_run(path: Path) -> Path | None:
    """The run folder that a dump lies in, or None. path: as of `known`."""
    return next((f for f in (path, *path.parents[:2]) if (f / "config.json").is_file() and (f / "dumps").is_dir()), None)


def _configured(path: Path) -> RunFacts:
    """Read what explains a dump's mismatch from the config of its run; `RunFacts()` if there is no run or no sound config."""
    if (run := of_run(path)) is None:
        return RunFacts()
    try:
        return run_facts(RunFolder(run).read("config.json"))
    except UserError:
        return RunFacts()  # the dump is judged without the damaged config


class DiagnosedTokens(NamedTuple):
    """The tokens of a dump that were diagnosed. version: number of the weights that sampled each, [B, T]; None if unknown."""

    pairs: LogpPairs
    version: Tensor | None


class Evidence:
    """Collects batches of a dump, then diagnoses whether its log-probabilities have faults that rounding does not explain."""

    def __init__(self, facts: RunFacts):
        self.facts = facts
        self.batches: list[DumpedResponses] = []
        self.lags: list[np.ndarray | None] = []
        self.seen, self.every = 0, 1

    @property
    def uncompared(self) -> bool:
        """Whether K3 is neither compared with that of a precision or baseline, nor explained by noise or stale weights."""
        explained = self.facts.noise or any(lag is not None for lag in self.lags)
        return self.facts.precision is None and self.facts.baseline is None and not explained

    def untested(self) -> str | None:
        """Say what the diagnosis could hardly test, for lack of a column in every batch; None if no column lacks."""
        asked = ("tokens", "entropy", "advantages")
        lacking = [name for name in asked if all(getattr(one, name) is None for one in self.batches)]
        if not lacking:
            return None
        missed = ["whether top-p, penalties or another sampler drew the tokens"] if lacking != ["advantages"] else []
        missed += ["whether weights were old"] if "advantages" in lacking else []
        return f"{UNTESTED} {', '.join(lacking)}: {', and '.join(missed)}."

    def copied(self, found: Diagnosis) -> bool:
        """Whether the columns of a dump without a fault are equal to the bit, and no --precision fp32 says that they may be."""
        return found.copied and self.facts.precision != "fp32"

    def note(self, found: Diagnosis) -> str | None:
        """Say why K3 was not compared with a precision or baseline; None if it was, or if none is asked for."""
        if self.uncompared:
            return UNCOMPARED
        named = self.facts.precision is not None or self.facts.baseline is not None
        return LAGGING if named and found.statistics["size/fresh"] == 0 else None

    def add(self, responses: DumpedResponses) -> None:
        """Add one batch of dumped responses. If a dump is too large to be diagnosed whole, only every k-th batch is kept."""
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
        """Number of versions by which each token's weights are known to lag, [tokens]; None if no token's weights lag."""
        mask = torch.tensor(responses.mask)
        version = torch.zeros(len(mask), dtype=torch.int64) if responses.version is None else torch.tensor(responses.version)
        lag = self.facts.lag(version, mask)
        return None if lag is None else lag.numpy()

    def diagnosis(self) -> tuple[Diagnosis, DiagnosedTokens]:
        """Diagnose the batches. Returns the diagnosis and the diagnosed tokens."""
        whole = _joined(self.batches)
        batch = padded(whole)
        lag = None
        if any(lag is not None for lag in self.lags):
            pairs = zip(self.lags, self.batches, strict=True)
            lag = padded_column(
                whole, np.concatenate([np.zeros(len(one.mask), np.int64) if own is None else own for own, one in pairs])
            )
        columns = (whole.tokens, whole.entropy, whole.repeat_prob, whole.version)
        tokens, entropy, repeat_prob, version = (None if part is None else padded_column(whole, part) for part in columns)
        return self.facts.diagnose(batch, lag, tokens, Predicted(entropy, repeat_prob)), DiagnosedTokens(
            LogpPairs(batch), version
        )


def _thinned(responses: DumpedResponses) -> DumpedResponses:
    """Keep every k-th prompt, or every k-th response if prompts are unknown, so that at most CELLS padded values remain."""
    lengths = np.diff(responses.offsets)
    times = -(-len(responses) * int(lengths.max(initial=0)) // CELLS)
    if times <= 1:
        return responses
    number = np.arange(len(responses)) if responses.group is None else np.unique(responses.group, return_inverse=True)[1]
    return responses.rows(np.flatnonzero(number % times == 0))


def _joined(batches: list[DumpedResponses]) -> DumpedResponses:
    """Join batches into one in which prompts of different batches have different numbers.

    A column that a batch lacks becomes None.
    """
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
