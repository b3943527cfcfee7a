"""docs/diagnosis.md: its counts are those of the recorded dumps."""

from pathlib import Path

from experiments.faults.plan import FORMER, HELD_OUT
from experiments.faults.report import read

ROOT = Path(__file__).parents[2]


def test_its_counts_are_those_of_the_record():
    page = (ROOT / "docs/diagnosis.md").read_text(encoding="utf-8")
    record = read(ROOT / "experiments/study/faults/record-6.csv")
    left_out, clean = record["fault"].isin(list(HELD_OUT)), record["fault"] == "clean"
    fp32 = ~record["source"].str.endswith("-micro_batches")  # the trainer's precision
    parts = {
        "foreseen faults, middle size": record["middle"] & ~left_out & ~record["fault"].isin(list(FORMER)) & fp32,
        "left-out faults, all sizes": left_out,
        "no fault": clean,
    }
    for name, rows in parts.items():
        part = record[rows]
        counts = (len(part), part["right"].sum(), part["bare_right"].sum(), (part["bare_kind"] == "consistent").sum())
        assert f"| {name} | {' | '.join(str(count) for count in counts)} |" in page
