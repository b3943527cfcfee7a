"""`make bench`, reading a sweep: 500 runs x 1,000 steps x 60 metrics, cold and from the cache, against pandas' own reader."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import pandas as pd

from analysis.load import load
from harness.compose import compose
from harness.config import Config, parse
from harness.run.folder import RunFolder

RUNS, STEPS, METRICS = 500, 1000, 60
SAMPLE = 20
"""Runs that pandas reads."""


def main() -> None:
    """Print seconds by the clock and of processor time, and the ratio per run."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        plain = compose(f"run.root={root}", "run.sweep=bench")
        files = [_write(parse(plain | {"seed": seed, "steps": STEPS})) for seed in range(RUNS)]
        size = sum(file.stat().st_size for file in files) / 2**20
        print(f"\nreading {RUNS} runs x {STEPS:,} steps x {METRICS} metrics, {size:,.0f} MiB of JSON lines")
        seconds = {}
        for name in ("cold", "from the cache"):
            clock, cpu = time.perf_counter(), time.process_time()
            steps = load(root / "bench").steps
            seconds[name] = time.perf_counter() - clock
            print(f"  {name}: {seconds[name]:.1f} s, {time.process_time() - cpu:.1f} s of this process's processor time")
        assert len(steps) == RUNS * STEPS, len(steps)
        clock = time.perf_counter()
        pd.concat(pd.read_json(file, lines=True) for file in files[:SAMPLE])
        each = (time.perf_counter() - clock) / SAMPLE
        ratio = each * RUNS / seconds["cold"]
        print(f"  pandas.read_json: {each * RUNS:.1f} s in proportion ({SAMPLE} runs read), {ratio:.1f} times cold")


def _write(config: Config) -> Path:
    run = RunFolder(config.path)
    run.path.mkdir(parents=True)
    run.write("config.json", config.model_dump(mode="json"))
    run.status("done", step=STEPS, steps=STEPS)
    rows = ({"step": t, **{f"x/{i}": (config.seed + t * 61 + i) ** 0.5 for i in range(METRICS)}} for t in range(STEPS))
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run.path / "metrics.jsonl"


if __name__ == "__main__":
    main()
