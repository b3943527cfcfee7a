"""Metrics of the trained policy π_θ: its mismatch with the engine's μ, and the applied correction, in each mini-batch.

π_θ changes with every mini-batch. If the loss or the correction uses π_θ/μ, statistics of π_old/μ do not describe that ratio.
"""

from __future__ import annotations

import torch
from torch import Tensor

from algos.batch import Batch
from algos.corrections.spec import Correction
from algos.diagnostics.correction import correct_with_diagnostics, finish_applied, finish_filters, finish_weights
from algos.diagnostics.mismatch import finish_mismatch, mismatch_rows
from algos.diagnostics.rows import Rows

CURRENT, OLD = "current/", "old/"
"""Prefixes of metric names. `current/`: mismatch of π_θ/μ. `old/`: correction by π_old/μ in a run that applies one by π_θ/μ."""
UNDEFINED = ("mismatch/pareto_k", "profile/", "correction/used_length", "correction/dropped_length")
"""Prefixes of the metrics that are NaN when undefined, such as the length of dropped responses when none is dropped."""


def trained_rows(batch: Batch, spec: Correction, policy: Tensor) -> Rows:
    """Statistics per response for `trained_metrics`: mismatch π_θ/μ, and a correction by this ratio. policy: log π_θ [B, T]."""
    return mismatch_rows(batch, policy) if spec.ratio == "old" else correct_with_diagnostics(batch, spec, policy)[1]


def trained_metrics(rows: Rows, spec: Correction, *, complete: bool) -> dict[str, Tensor]:
    """Metrics `current/…` of a mini-batch's mismatch π_θ/μ; with correction.ratio=current also those of the correction.

    rows: from `trained_rows`. Values are fp64 scalars; {} without tokens. complete: include statistics of the filters.
    """
    if not rows["n"].any():
        return {}
    metrics = {f"{CURRENT}{name}": value for name, value in finish_mismatch(rows).items()}
    return metrics | (correction_metrics(rows, spec, complete=complete) if spec.ratio == "current" else {})


def correction_metrics(rows: Rows, spec: Correction, *, complete: bool) -> dict[str, Tensor]:
    """Metrics of a correction, from its diagnostics per response. complete: include statistics of its filters."""
    weights = finish_weights(rows, spec) if spec.weight.level else {}
    return finish_applied(rows) | weights | (finish_filters(rows, spec) if complete else {})


def over_minibatches(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Reduce each metric over mini-batches as verl does: maximum if "max" is in the name, minimum if "min" is, else mean."""
    metrics = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        values = torch.stack([part[name] for part in parts if name in part])
        if is_optional(name):
            values = values[~values.isnan()]
        if len(values):
            metrics[name] = values.amax() if "max" in name else values.amin() if "min" in name else values.mean()
    return metrics


def is_optional(name: str) -> bool:
    """Whether a NaN of the metric `name` means that the metric is undefined."""
    return name.removeprefix(CURRENT).removeprefix(OLD).startswith(UNDEFINED)


def norm_metrics(model: str, norms: list[float | None]) -> dict[str, Tensor]:
    """Share of a model's optimizer steps that were skipped (norm None), and the largest gradient norm of the other steps."""
    taken = torch.tensor([norm for norm in norms if norm is not None], dtype=torch.float64)
    metrics = {f"{model}/skipped": torch.tensor(1 - len(taken) / len(norms), dtype=torch.float64)}
    if len(taken):
        metrics[f"{model}/grad_norm"] = taken.amax()  # NaN, if there is one
    return metrics
