"""One RL step of the default run with FP8 rollouts by phase, and its share that is neither matrix product nor optimizer."""

import tempfile
from statistics import median

from torch.profiler import profile

from benchmarks.steps import trainer

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "scaled_dot_product")
"""Parts of the names of operators that are matrix products, attention's included."""


def main() -> None:
    overrides = ("rollout/precision=fp8_tensor", "correction=token_truncate")
    with tempfile.TemporaryDirectory() as root, trainer(root, *overrides) as run:
        rows = [run.step(step) for step in range(1, 12)][1:]  # the first step allocates
        rows = [row for row in rows if "time/evaluate" not in row]
        with profile() as profiled:
            total = 1e6 * sum(run.step(step)["time/step"] for step in range(12, 15))
    whole = median(row["time/step"] for row in rows)
    print(f"  step: {whole * 1e3:.0f} ms")
    for phase in ("sync", "generate", "score", "train"):
        seconds = median(row[f"time/{phase}"] for row in rows)
        print(f"  {phase}: {seconds * 1e3:.0f} ms, {seconds / whole:.0%}")
    events = profiled.key_averages()
    products = sum(e.self_cpu_time_total for e in events if any(part in e.key for part in PRODUCTS)) / total
    optimizer = sum(e.self_cpu_time_total for e in events if "adam" in e.key.lower()) / total
    print(f"  profiled: matrix products {products:.0%}, optimizer {optimizer:.0%}, the rest {1 - products - optimizer:.0%}")
