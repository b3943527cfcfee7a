"""`make bench`, replay: all thresholds of all levels at once against one, on a parquet dump, on one core."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from algos.corrections.apply import correct
from algos.diagnostics.rows import merge
from faultline.tools.replay.effect import effect_rows, finish_effect, padded
from faultline.tools.replay.family import Family
from faultline.tools.replay.sources import Dump
from faultline.tools.replay.thresholds import DEFAULT, Thresholds
from harness.dumps import files

TOKENS, LENGTH, PER_STEP = 10_000_000, 1000, 1000


def main() -> None:
    """Print seconds for 1,000 thresholds of all levels, and for 1,000 and for one of a single level."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        dump = Dump(_write(Path(folder)))
        print(f"\nreplay of {TOKENS:,} tokens in {TOKENS // LENGTH // PER_STEP} batches, parquet read from disk each time")
        for families, what in ((None, "all levels"), ([Family("truncate", "token")], "level token")):
            seconds = {}
            for c in (DEFAULT, np.array([2.0])):
                thresholds = Thresholds(c, families)
                began = time.process_time()
                for batch in dump.batches():
                    thresholds.add(batch)
                thresholds.table()
                seconds[len(c)] = time.process_time() - began
            many, one = seconds.values()
            print(f"  {what}, {len(thresholds.families)} families: {many:.1f} s for {len(DEFAULT)} bounds, {one:.1f} s for one")
        began = time.process_time()
        spec = Family("truncate", "token").at(2.0)
        finish_effect(merge([effect_rows(batch, correct(batch, spec)) for batch in map(padded, dump.batches())]))
        print(f"  the training step's own correction for one threshold of level token: {time.process_time() - began:.1f} s")


def _write(folder: Path) -> Path:
    """Log ratios with the tail of Student's t of 4 degrees, in four turns."""
    rng = np.random.default_rng(0)
    for step in range(TOKENS // LENGTH // PER_STEP):
        rollout = -rng.exponential(1.0, (PER_STEP, LENGTH)).astype(np.float32)
        old = np.minimum(rollout + 0.02 * rng.standard_t(4, rollout.shape), 0).astype(np.float32)
        columns = {
            "step": np.full(PER_STEP, step),
            "mask": np.ones(rollout.shape, dtype=bool),
            "logp_rollout": rollout,
            "logp_old": old,
            "segments": np.broadcast_to(np.arange(LENGTH) // (LENGTH // 4), rollout.shape),
        }
        files.write(folder / f"step-{step}.parquet", columns)
    return folder


if __name__ == "__main__":
    main()
