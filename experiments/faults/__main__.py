"""`python -m experiments.faults`: make the planned dumps, diagnose each, and print how often the diagnosis named the fault.

    python -m experiments.faults --make recorded chain runs smollm2 vllm   # makes, diagnoses, records and prints
    python -m experiments.faults                                      # prints what is recorded

Every dump has a row in the record. Existing rows are not computed again, so a stopped command can be resumed.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from algos.diagnostics.evidence import Predicted
from algos.diagnostics.rounding import K3
from algos.faults.diagnose import diagnose
from experiments.faults import clean, inject
from experiments.faults.inject import Key, Made
from experiments.faults.report import report
from harness.boundary import command

RECORD = Path(__file__).parents[1] / "study" / "faults" / "record.csv"
PARTS = ("recorded", "chain", "runs", "smollm2", "vllm")
FIELDS = (
    *Key._fields, "responses", "tokens", "kind", "named", "question", "strength", "k3", "z", "surprise_z", "baseline",
    "bare_kind", "bare_named", "bare_question", "plain_kind", "plain_named", "plain_question",
)  # fmt: skip
"""Columns of the record of diagnosed dumps. bare_*: the diagnosis without the trainer's entropies, probabilities of
repeated tokens, and baseline K3.
plain_*: also without token ids and advantages, as verl's default dump."""


def main(arguments: argparse.Namespace) -> None:
    """Make and diagnose the planned dumps that the record lacks, add a row for each, then print the report."""
    done = keys(arguments.record)
    for made in dumps(arguments, lambda key: str(key) not in done):
        add(arguments.record, judged(made))
    print(report(arguments.record))


def dumps(arguments: argparse.Namespace, wanted: inject.Wanted) -> Iterator[Made]:
    """Generate the dumps that `wanted` accepts, from the parts of the plan chosen by the command-line arguments."""
    made = {
        "recorded": lambda: inject.recorded(wanted),
        "chain": lambda: inject.chain(arguments.runs, wanted),
        "runs": lambda: inject.runs(arguments.runs, wanted),
        "smollm2": lambda: inject.smollm2(arguments.model, wanted),
        "vllm": lambda: inject.vllm(arguments.model, arguments.runs, wanted),
    }
    for part in arguments.make:
        yield from made[part]()


def keys(record: Path) -> set[str]:
    """Return the keys of all rows of a record as strings; empty if there is no such file."""
    if not record.exists():
        return set()
    with record.open() as file:
        return {" ".join(row[name] for name in Key._fields) for row in csv.DictReader(file)}


def judged(made: Made) -> dict[str, Any]:
    """Diagnose the fault of a dump, and return the result as a row of the record: a dict with the keys FIELDS."""
    arm = made.key.precision
    precision = arm if arm in K3 or arm not in clean.ARMS else clean.sampler(arm)
    bare = diagnose(made.batch, usual=precision, lag=made.lag, tokens=made.tokens)
    found = bare
    if made.entropy is not None or made.baseline is not None:
        usual = precision if made.baseline is None else made.baseline
        found = diagnose(
            made.batch, usual=usual, lag=made.lag, tokens=made.tokens, predicted=Predicted(made.entropy, made.repeat_prob)
        )
    plain = diagnose(made.batch._replace(advantages=None), usual=precision, lag=made.lag)
    statistics = found.statistics
    numbers = found.strength, statistics["tails/k3"], statistics["identity/z"], statistics["surprise/z"], made.baseline or 0.0
    values = (
        *str(made.key).split(), len(made.batch.mask), int(made.batch.mask.sum()), found.kind, found.fault or "",
        found.question or "", *(f"{number:.3g}" for number in numbers), bare.kind, bare.fault or "", bare.question or "",
        plain.kind, plain.fault or "", plain.question or "",
    )  # fmt: skip
    return dict(zip(FIELDS, values, strict=True))


def add(record: Path, row: dict[str, Any]) -> None:
    """Append a row to the record file, and print it."""
    record.parent.mkdir(parents=True, exist_ok=True)
    new = not record.exists()
    with record.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if new:
            writer.writeheader()
        writer.writerow(row)
    print(" ".join(str(value) for value in row.values()), flush=True)


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m experiments.faults", description="The confusion matrix of the diagnosis.")
    parser.add_argument("--make", nargs="*", choices=PARTS, default=[], help="parts of the plan to make before the report")
    parser.add_argument("--model", default="models/smollm2", help="folder of SmolLM2")
    parser.add_argument("--runs", type=Path, default=Path("runs/faults"), help="folder of the trained runs")
    parser.add_argument("--record", type=Path, default=RECORD)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    with command():
        main(parsed())
