"""`python -m experiments.faults`: inject faults, diagnose each dump, and print the confusion matrix.

    python -m experiments.faults --clean runs/faults/clean --seeds 1001 1002   # trains, injects, appends, prints
    python -m experiments.faults                                               # prints what is recorded

Every dump is a row of the record. Existing rows are not computed again, so a stopped command can be resumed.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch

from algos.batch import Batch
from algos.faults.diagnose import diagnose
from analysis.frames import markdown
from experiments.faults import clean, edits, real
from experiments.faults.plan import BUILD_SEEDS, HELD_OUT, JUDGE_SEEDS
from experiments.faults.read import batch as read
from harness.boundary import command
from harness.compose import compose
from harness.config import Config, parse
from harness.errors import UserError

RECORD = Path(__file__).parents[1] / "study" / "faults" / "record.csv"
FIELDS = (
    "source",
    "fault",
    "size",
    "precision",
    "seed",
    "responses",
    "tokens",
    "expected",
    "kind",
    "named",
    "question",
    "strength",
)
NAMES = {
    "bos": "prompt", "template": "prompt", "prefix": "prompt", "top_p": "truncated_sampling", "top_k": "truncated_sampling",
    "prompt_in_mask": "mask", "prompt_fill": "mask", "padding": "mask", "log2": "log_base", "log10": "log_base",
    "eos_trainer": "eos", "eos_rollout": "eos", "rollout_zero": "fill", "rollout_floor": "fill",
}  # fmt: skip
"""Name of an injection -> name of the fault in the diagnosis, where the two differ."""
STALE = {
    1: ("rollout.staleness=1", "actor.lr=1e-3"),
    4: ("rollout.staleness=4", "actor.lr=1e-3"),
    8: ("rollout.staleness=8", "actor.lr=1e-3"),
}
"""Number of syncs that the sampler's weights lag -> overrides of a run whose dumps do not record the lag."""
TEXT = ("+experiment=smollm2/bf16", "tracking=disabled")
SAMPLERS = {"chain": ("bf16", "fp8_tensor"), "smollm2": ("bf16",)}


class Made(NamedTuple):
    """A dump as a batch, with the injected fault and the conditions of the run."""

    source: str
    fault: str
    size: float
    precision: str
    seed: int
    batch: Batch
    tokens: torch.Tensor | None = None
    lag: torch.Tensor | None = None


def main(arguments: argparse.Namespace) -> None:
    """Inject, diagnose and record the dumps that the record lacks, then print the confusion matrix."""
    done = recorded(arguments.record)
    for seed in arguments.seeds:
        if seed in BUILD_SEEDS and not arguments.building:
            raise UserError(
                f"--seeds {seed}: of the building; judge on {JUDGE_SEEDS.start} to {JUDGE_SEEDS.stop - 1}, or give --building"
            )
        for made in dumps(arguments, seed, done):
            add(arguments.record, judged(made))
    print(matrix(arguments.record))


def key(source: str, fault: str, size: float, precision: str, seed: int) -> tuple[str, ...]:
    """The key of a row of the record."""
    return source, fault, f"{size:g}", precision, str(seed)


def recorded(record: Path) -> set[tuple[str, ...]]:
    """The keys of all rows that a record holds."""
    if not record.exists():
        return set()
    with record.open() as file:
        return {tuple(row[name] for name in FIELDS[:5]) for row in csv.DictReader(file)}


def dumps(arguments: argparse.Namespace, seed: int, done: set[tuple[str, ...]]) -> Iterator[Made]:
    """Generate, one at a time, the dumps of a seed that the record lacks."""
    if "chain" in arguments.models:
        yield from _runs(arguments.clean, seed, done)
        yield from _stale(arguments.clean, seed, done)
        yield from _injected("chain", chain(arguments.clean, seed), arguments.responses, seed, done)
    if "smollm2" in arguments.models:
        answer = (f"task.answer_length={arguments.answer}", f"model.path={arguments.model}")
        yield from _injected("smollm2", parse(compose(*TEXT, *answer)), arguments.responses, seed, done)


def chain(folder: Path, seed: int) -> Config:
    """The config of the chain task's policy with which the runs of a seed start."""
    return parse(compose(*clean.BASE, f"run.root={folder}", f"seed={seed}"))


def _runs(folder: Path, seed: int, done: set[tuple[str, ...]]) -> Iterator[Made]:
    """The unrecorded dumps of runs without a fault. A dump is identified by its arm and its step."""
    expected = {("run", "clean", f"{step:g}", arm, str(seed)) for arm in clean.ARMS for step in clean.STEPS}
    if not expected <= done:
        clean.main(folder, [seed])
    for arm, path in clean.dumps(folder, seed):
        step = int(path.stem.rpartition("-")[2])
        if key("run", "clean", step, arm, seed) not in done:
            own, versions, tokens = read(path)
            late = arm.startswith("staleness") or arm == "partial"
            lag = None if versions is None or not late else 1 + versions.max() - versions
            yield Made("run", "clean", step, arm, seed, own, tokens, lag)


def _stale(folder: Path, seed: int, done: set[tuple[str, ...]]) -> Iterator[Made]:
    """The last dump of each run whose sampler lags k syncs, without a record of the lag in the dump."""
    from harness.run.loop import train

    for k, overrides in STALE.items():
        if key("run", "stale", k, "fp8_tensor", seed) in done:
            continue
        config = clean.config(folder, "fp8_tensor", seed, *overrides, f"run.sweep={seed}-behind-{k}")
        train(config)
        path = max(config.path.glob("dumps/*.parquet"))
        own, _, tokens = read(path)
        yield Made("run", "stale", k, "fp8_tensor", seed, own, tokens)


def _injected(source: str, config: Config, responses: int, seed: int, done: set[tuple[str, ...]]) -> Iterator[Made]:
    """The unrecorded dumps with a fault: real injections into a policy, and edits of a clean dump."""
    bed = None
    for precision in SAMPLERS[source]:
        honest = None
        cases = [("clean", 0.0), *((fault, size) for fault, sizes in real.SIZES.items() for size in sizes)]
        for fault, size in cases:
            if not real.possible(fault, size, config) or key(source, fault, size, precision, seed) in done:
                continue
            bed = bed or real.Bed(config, responses, seed)
            drawn = bed.case(fault, size, precision)
            yield Made(source, fault, size, precision, seed, bed.batch(drawn), drawn.tokens)
        for fault, sizes in edits.SIZES.items():
            for size in sizes:
                if key(source, fault, size, precision, seed) in done:
                    continue
                bed = bed or real.Bed(config, responses, seed)
                honest = honest or bed.batch(bed.case("clean", 0, precision))
                yield Made(source, fault, size, precision, seed, edits.edited(honest, fault, size, seed))


def judged(made: Made) -> dict[str, Any]:
    """Diagnose a dump and return the result as a row of the record."""
    precision = {"partial": "fp8_tensor", "moe": "fp8_tensor", "moe_r3": "fp8_tensor"}.get(made.precision, made.precision)
    precision = "fp8_tensor" if precision.startswith("staleness") else precision
    found = diagnose(made.batch, precision=precision, lag=made.lag, tokens=made.tokens)
    values = (
        *key(made.source, made.fault, made.size, made.precision, made.seed), len(made.batch.mask), int(made.batch.mask.sum()),
        NAMES.get(made.fault, made.fault), found.kind, found.fault or "", found.question or "", f"{found.strength:.3g}",
    )  # fmt: skip
    return dict(zip(FIELDS, values, strict=True))


def add(record: Path, row: dict[str, Any]) -> None:
    """Append a row to the record file."""
    record.parent.mkdir(parents=True, exist_ok=True)
    new = not record.exists()
    with record.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if new:
            writer.writeheader()
        writer.writerow(row)
    print(
        f"{row['source']} {row['fault']} {row['size']} {row['precision']} {row['seed']}: {row['kind']} {row['named']}", flush=True
    )


def matrix(record: Path) -> str:
    """The confusion matrix as Markdown: a row per injection and size, with the share named correctly and the wrong answers."""
    frame = pd.read_csv(record, keep_default_na=False)
    if frame.empty:
        raise UserError(f"{record}: no dump is recorded; give --seeds")
    rows = []
    for (source, fault, size), part in frame.groupby(["source", "fault", "size"], sort=False):
        said = part["named"].where(part["kind"] == "fault", part["kind"])
        if fault in HELD_OUT:
            right = (part["kind"] == "unknown") | ((part["kind"] == "fault") & (part["question"] == HELD_OUT[fault]))
        else:
            right = said == ("consistent" if fault == "clean" else part["expected"])
        counts = ", ".join(f"{name} {count}" for name, count in said.value_counts().items())
        rows.append(
            {
                "source": source,
                "fault": fault,
                "size": f"{size:g}",
                "dumps": len(part),
                "right": f"{right.mean():.0%}",
                "said": counts,
            }
        )
    table = pd.DataFrame(rows)
    of_runs = table["source"].eq("run") & table["fault"].eq("clean")
    if of_runs.any():
        part = frame[(frame["source"] == "run") & (frame["fault"] == "clean")]
        accused = int((part["kind"] != "consistent").sum())
        whole = {
            "source": "run",
            "fault": "clean",
            "size": "all",
            "dumps": len(part),
            "right": f"{1 - accused / len(part):.1%}",
            "said": "",
        }
        table = pd.concat([pd.DataFrame([whole]), table[~of_runs]])
    return markdown(table)


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m experiments.faults", description="The confusion matrix of the diagnosis.")
    parser.add_argument("--seeds", type=int, nargs="*", default=[], help="of the judging, from 1001")
    parser.add_argument("--building", action="store_true", help="seeds of the building are meant")
    parser.add_argument("--models", nargs="+", choices=list(SAMPLERS), default=["chain"])
    parser.add_argument("--responses", type=int, default=256)
    parser.add_argument("--answer", type=int, default=32, help="most tokens of SmolLM2's answers")
    parser.add_argument("--model", default="models/smollm2")
    parser.add_argument("--clean", type=Path, default=Path("runs/faults"), help="folder of the runs without a fault")
    parser.add_argument("--record", type=Path, default=RECORD)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    with command():
        main(parsed())
