"""Time of reading 500 runs x 1,000 steps x 60 metrics, against pandas.read_json, and of a report on these runs."""

import copy
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd

from analysis.load import load
from benchmarks.measure import Case, children
from harness.compose import compose
from harness.run.folder import RunFolder

RUNS, STEPS, METRICS, DIFFERENT = 500, 1000, 60, 10
"""Size of the synthetic sweep. Each loss and precision has DIFFERENT distinct runs, repeated because generating 500 is slow."""
ARMS = [(loss, name) for loss in ("ppo", "gspo", "cispo", "pg", "topr") for name in ("fp32", "fp8_tensor")]


def cases() -> Iterator[Case]:
    """Generate two cases, reading a sweep of 500 runs and reporting it, each with an empty cache and then with a full one."""
    os.environ["MPLCONFIGDIR"] = matplotlib.get_cachedir()  # its list of fonts was made once
    with tempfile.TemporaryDirectory() as folder:
        files = _write(sweep := Path(folder) / "bench")
        size = f"{sum(file.stat().st_size for file in files) >> 20:,} MiB of JSON lines"
        read, command = partial(_read, sweep), (sys.executable, "-m", "faultline", "report", str(sweep))
        pandas = {"pandas.read_json": lambda: [pd.read_json(file, lines=True) for file in files]}
        yield Case(f"read, {size}", _cold_and_cached(folder, read) | pandas, rounds=2, warm=False)
        report = partial(subprocess.run, command, check=True, capture_output=True)
        yield Case("faultline report", _cold_and_cached(folder, report), rounds=2, warm=False, clock=children)


def _cold_and_cached(folder: str, run: Callable[[], object]) -> dict[str, Callable[[], object]]:
    """Return two functions by name: one calls `run` with an empty cache, the other with the cache that an earlier call filled."""

    def cold() -> None:
        os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(dir=folder)
        run()

    return {"cold": cold, "from the cache": run}


def _read(sweep: Path) -> None:
    steps = load(sweep).steps
    assert len(steps) == RUNS * (STEPS + 1), len(steps)


def _write(sweep: Path) -> list[Path]:
    files = []
    for loss, precision in ARMS:
        config = compose(f"loss={loss}", f"rollout/precision={precision}", "tracking=disabled")
        for seed in range(RUNS // len(ARMS)):
            run = RunFolder(sweep / f"{loss}-{precision}-{seed}")
            run.path.mkdir(parents=True)
            run.write("config.json", copy.deepcopy(config) | {"seed": seed, "steps": STEPS})
            collapse = 500 if precision != "fp32" and seed % DIFFERENT < 4 else None
            if collapse is not None:
                run.log_event("collapse", collapse + 30, detector="drawdown", onset=collapse)
            run.status("done" if collapse is None else "collapsed", step=STEPS, steps=STEPS)
            files.append(run.path / "metrics.jsonl")
            files[-1].write_text(_rows(precision != "fp32", collapse, seed % DIFFERENT))
    return files


@functools.cache
def _rows(mismatched: bool, collapse: int | None, seed: int) -> str:
    """Text of a random metrics file. mismatched: K3 > 0. collapse: step at which the reward falls to 0.05, or None."""
    rng, lines = np.random.default_rng(seed), []
    for step in range(STEPS + 1):
        reward = 0.05 if collapse is not None and step >= collapse else 0.4 + 0.5 * min(step / 400, 1) + rng.normal(0, 0.01)
        k3 = float(mismatched * 1e-4 * np.exp(rng.normal(0, 0.3)))
        row = {
            "step": step, "reward/rollout": reward, "rollout_corr/k3_kl": k3, "rollout_corr/kl": k3,
            "mismatch/ess_token": 1 / (1 + k3), "mismatch/ess_sequence": 1 / (1 + 30 * k3),
            "mismatch/log_ratio_max_abs": 100 * k3**0.5, "actor/grad_norm": float(np.exp(rng.normal(0, 0.2))),
            "actor/entropy": 0.3, "time/step": 0.35,
        }  # fmt: skip
        if step % 10 == 0:
            row |= {"eval/reward": reward, "eval/stderr": 0.02, "eval/samples": 384}
        filler = rng.random(METRICS - len(row))
        lines.append(json.dumps(row | {f"x/{i}": float(value) for i, value in enumerate(filler)}) + "\n")
    return "".join(lines)
