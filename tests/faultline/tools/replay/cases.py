"""Dumped batches made for tests."""

import numpy as np

from algos.faults.diagnose import Diagnosis
from faultline.tools.replay.thresholds import DEFAULT, Thresholds
from harness.dumps import files
from harness.dumps.schema import DumpedResponses, responses

CONSISTENT = Diagnosis("consistent", None, None, "it is", {}, None, 0.0, {"identity/mean": 1.0, "identity/error": 1e-3}, 4e-3)
"""The diagnosis of a dump in which only rounding differs."""


def random_columns(rows=24, length=20, seed=0, dtype=np.float64, scale=0.4):
    """Padded columns of one batch: lengths from 0 to `length`, holes in the masks, heavy-tailed log ratios, turns."""
    rng = np.random.default_rng(seed)
    lengths = np.concatenate([[0, 1, length], rng.integers(1, length + 1, rows - 3)])
    mask = (np.arange(length) < lengths[:, None]) & (rng.random((rows, length)) > 0.1)
    rollout = -rng.exponential(1.0, (rows, length))
    old = np.minimum(rollout + scale * rng.standard_t(3, (rows, length)) * 0.5, 0.0)
    return {
        "step": np.full(rows, 7),
        "mask": mask,
        "logp_rollout": rollout.astype(dtype),
        "logp_old": old.astype(dtype),
        "advantages": rng.normal(size=(rows, length)).astype(dtype),
        "segments": np.minimum(np.arange(length) // 5, 3) * np.ones((rows, 1), dtype=np.int64),
    }


def as_responses(columns) -> DumpedResponses:
    return responses(files.tabulate(columns))


def all_thresholds(batches, c=DEFAULT, chosen=None) -> Thresholds:
    """The thresholds `c` over all batches."""
    thresholds = Thresholds(c, chosen)
    for batch in batches:
        thresholds.add(batch)
    return thresholds


def unwritten(folder, verdict, *_):
    """`page.write` without the files: drawing them takes four fifths of the time of `faultline replay`."""
    return verdict.model_copy(update={"page": f"{folder}/replay.html"})
