"""Time to evaluate a correction at many bounds in one pass over a parquet dump, against verl's function for one bound."""

import tempfile
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from algos.batch import Batch
from algos.corrections.apply import correct
from algos.diagnostics.rows import merge
from benchmarks.measure import Case
from faultline.tools.replay.effect import effect_rows, finish_effect, padded
from faultline.tools.replay.family import Family
from faultline.tools.replay.sources import Dump
from faultline.tools.replay.thresholds import DEFAULT, Thresholds
from harness.dumps import files

NEEDS = ("verl",)
TOKENS, LENGTH, PER_STEP = 10_000_000, 1000, 1000


def cases() -> Iterator[Case]:
    """Generate two cases: Faultline at many bounds, and Faultline at one bound, each against verl's function at one bound."""
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

    def verl(batches: Iterable[Batch]) -> None:
        for batch in batches:
            policies = (batch.logp_old, batch.logp_rollout, batch.mask.float())
            compute_rollout_correction_and_rejection_mask(*policies, rollout_is="token", rollout_is_threshold=2.0)

    with tempfile.TemporaryDirectory() as folder:
        dump = Dump(_write(Path(folder)))
        token, kept = [Family("truncate", "token")], [padded(batch) for batch in dump.batches()]
        theirs = {
            "1 bound by verl, of the same parquet": lambda: verl(map(padded, dump.batches())),
            "1 bound by verl, of tensors in memory": partial(verl, kept),
        }
        size = f"{TOKENS:,} tokens in {TOKENS // LENGTH // PER_STEP} batches, parquet read from disk each time"
        many = {f"{len(DEFAULT):,} bounds, level token": partial(_replay, dump, DEFAULT, token)}
        every = {f"{len(DEFAULT):,} bounds, all levels": partial(_replay, dump, DEFAULT, None)}
        yield Case(size, many | every | theirs)
        one = {"1 bound, level token": partial(_replay, dump, np.array([2.0]), token)}
        yield Case(size, one | {"1 bound by the training step's correction": partial(_correct, dump)} | theirs)


def _replay(dump: Dump, bounds: np.ndarray, families: list[Family] | None) -> None:
    thresholds = Thresholds(bounds, families)
    for batch in dump.batches():
        thresholds.add(batch)
    thresholds.table()


def _correct(dump: Dump) -> None:
    spec = Family("truncate", "token").at(2.0)
    finish_effect(merge([effect_rows(batch, correct(batch, spec)) for batch in map(padded, dump.batches())]))


def _write(folder: Path) -> Path:
    """Write a dump of four turns per response, whose log π − log μ have the tail of Student's t with 4 degrees of freedom."""
    rng = np.random.default_rng(0)
    for step in range(TOKENS // LENGTH // PER_STEP):
        rollout = -rng.exponential(1.0, (PER_STEP, LENGTH)).astype(np.float32)
        columns = {
            "step": np.full(PER_STEP, step),
            "mask": np.ones(rollout.shape, dtype=bool),
            "logp_rollout": rollout,
            "logp_old": np.minimum(rollout + 0.02 * rng.standard_t(4, rollout.shape), 0).astype(np.float32),
            "segments": np.broadcast_to(np.arange(LENGTH) // (LENGTH // 4), rollout.shape),
        }
        files.write(folder / f"step-{step}.parquet", columns)
    return folder
