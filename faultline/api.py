"""Functions of `import faultline`. Some take a `Batch` or arrays named as in `Arrays`, the others the path of a dump."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Unpack

import pandas as pd
import torch

from algos.batch import Batch
from algos.corrections import apply
from algos.corrections.apply import Corrected
from algos.corrections.spec import Correction
from algos.diagnostics.correction import correct_with_diagnostics, finish_diagnostics
from algos.diagnostics.mismatch import mismatch as mismatch_of
from faultline.arrays import Arrays, as_batch
from faultline.tools.replay.collect import collect
from faultline.tools.replay.effect import padded
from faultline.tools.replay.presets import presets
from faultline.tools.replay.sources import Dump
from harness.room import bounded


def correct(batch: Batch | None = None, *, correction: Correction | str, **arrays: Unpack[Arrays]) -> Corrected:
    """Return the weights and the mask that a correction gives a batch, as detached tensors [B, T].

    With these, loss = Σ kept·weights·loss_t / Σ counted, where loss_t is the loss of a token. Other reductions use both as well.

    correction: a `Correction`, the name of a preset such as "icepop", or a YAML file. If it has normalize=batch, pass all
    responses of an optimizer step in one call. arrays: logp_old, logp_rollout, mask, advantages and segments; see `Arrays`.
    Raises ValueError if an array is missing or cannot be used.

    >>> import faultline
    >>> correction = faultline.Correction(weight=faultline.Weight("token", "truncate", upper=2.0))
    >>> corrected = faultline.correct(correction=correction, logp_old=[[-1.0, -1.5]], logp_rollout=[[-2.0, -1.5]])
    >>> corrected.weights.tolist()  # min(e¹, 2) and min(e⁰, 2)
    [[2.0, 1.0]]
    >>> corrected.kept.tolist()
    [[True, True]]
    """
    return apply.correct(_batch(batch, arrays), _correction(correction))


def mismatch(batch: Batch | None = None, **arrays: Unpack[Arrays]) -> dict[str, float]:
    """Return statistics of how π_old and μ differ, uncorrected. `algos.diagnostics.mismatch.finish_mismatch` has the equations.

    arrays: logp_old, logp_rollout and mask; see `Arrays`. Raises ValueError if an array is missing or cannot be used.

    >>> import faultline
    >>> stats = faultline.mismatch(logp_old=[[-1.0, -1.5]], logp_rollout=[[-1.1, -1.4]])
    >>> round(abs(stats["rollout_corr/kl"]), 6)  # K1 = −mean(0.1, −0.1)
    0.0
    >>> round(stats["rollout_corr/k3_kl"], 4)  # mean(e^0.1 − 1 − 0.1, e^−0.1 − 1 + 0.1)
    0.005
    """
    return _floats(mismatch_of(_batch(batch, arrays)))


def diagnostics(batch: Batch | None = None, *, correction: Correction | str, **arrays: Unpack[Arrays]) -> dict[str, float]:
    """Return metrics of the mismatch and of a correction's effect on a batch: weights, filters, tokens kept. Runs log them too.

    correction, arrays: the arguments of `correct`. Raises ValueError if an array is missing or cannot be used.

    >>> import faultline
    >>> stats = faultline.diagnostics(correction="token_truncate", logp_old=[[-1.0, -1.5]], logp_rollout=[[-2.0, -1.5]])
    >>> stats["correction/weight_mean"]  # of 2 and 1: the preset truncates at 2
    1.5
    """
    spec = _correction(correction)
    _, rows = correct_with_diagnostics(_batch(batch, arrays), spec)
    return _floats(finish_diagnostics(rows, spec))


def load(path: Path | str, *, skip_bad: bool = False) -> list[Batch]:
    """Return the training batches of a dump: a file (.parquet, .jsonl, .pkl, .pt), a folder of them, or a run folder.

    skip_bad: leave out rows with invalid values. Otherwise a UserError lists them. docs/dumps.md describes the format of dumps.

    >>> import faultline, pathlib, tempfile
    >>> dump = pathlib.Path(tempfile.mkdtemp()) / "dump.jsonl"
    >>> _ = dump.write_text('{"logp_rollout": [-1.0, -0.5], "logp_old": [-1.25, -0.5]}')
    >>> (batch,) = faultline.load(dump)
    >>> batch.logp_old.tolist()
    [[-1.25, -0.5]]
    """
    with bounded(path):
        return [padded(responses) for responses in Dump(Path(path), skip_bad=skip_bad).batches()]


class ReplayResult(NamedTuple):
    """Data frames that `replay` returns: the effect of corrections on a dump, and the dump's mismatch.

    corrections: a row per correction, with the metrics that a run logs and effect/*. thresholds: a row per family
    (corrections that differ only in the bound) and bound. profiles: mean weight, 0 if rejected, by position and response length.
    mismatch: statistics of the dump, as from `mismatch`. versions: a row per age of the weights that sampled a token, empty
    if the dump has no column of versions. skipped: correction -> why it is not replayed, such as "needs segments".
    """

    corrections: pd.DataFrame
    thresholds: pd.DataFrame
    profiles: pd.DataFrame
    mismatch: dict[str, float]
    versions: pd.DataFrame
    skipped: dict[str, str]


def replay(
    path: Path | str, corrections: Sequence[str] | Mapping[str, Correction] | None = None, *, skip_bad: bool = False
) -> ReplayResult:
    """Compute the effect on a dump of corrections, and of each kind at many bounds. The dump is read once, in pieces.

    path, skip_bad: the arguments of `load`. corrections: names of presets or YAML files, or corrections by name; default: all
    presets.

    >>> import faultline, pathlib, tempfile
    >>> dump = pathlib.Path(tempfile.mkdtemp()) / "dump.jsonl"
    >>> _ = dump.write_text('{"logp_rollout": [-2.0, -1.5], "logp_old": [-1.0, -1.5]}')
    >>> frames = faultline.replay(dump, corrections=["token_truncate"])
    >>> frames.corrections[["correction", "effect/weight_mean"]].values.tolist()
    [['token_truncate', 1.5]]
    """
    specs = dict(corrections) if isinstance(corrections, Mapping) else _presets(corrections)
    replayed = collect(Dump(Path(path), skip_bad=skip_bad), specs)
    table = replayed.thresholds.table()
    parts = replayed.corrections, table, replayed.profiles, replayed.mismatch, replayed.versions
    return ReplayResult(*parts, replayed.skipped)


def _batch(batch: Batch | None, arrays: Arrays) -> Batch:
    if batch is None:
        return as_batch(**arrays)
    if any(array is not None for array in arrays.values()):
        raise ValueError("batch and single arrays: give one or the other")
    if not isinstance(batch, Batch):
        raise ValueError(f"batch is a {type(batch).__name__}: give a faultline.Batch, or the arrays by name (logp_old=...)")
    return batch


def _presets(names: Sequence[str] | None) -> dict[str, Correction]:
    return {name: preset.correction for name, preset in presets(None if names is None else list(names)).items()}


def _correction(correction: Correction | str) -> Correction:
    return _presets([correction])[correction] if isinstance(correction, str) else correction


def _floats(metrics: Mapping[str, torch.Tensor]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}
