"""`python -m experiments.faults.power`: how many responses the diagnosis needs, from planned dumps cut into smaller ones.

The dumps are those of one seed of the chain task, with faults of their middle sizes. They are cut into disjoint parts of whole
prompts. Bookkeeping faults are edited into each part separately. Dumps in the record are not made again. The table leaves out
seeds of earlier plans.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from algos.diagnostics.evidence import Predicted
from algos.faults.diagnose import diagnose
from analysis.frames import markdown
from experiments.faults import edits, inject, plan, real
from experiments.faults.inject import Key, Made
from experiments.faults.report import NAMES
from harness.boundary import command

RECORD = Path(__file__).parents[1] / "study" / "faults" / "power.csv"
RUNS = Path("runs/faults")
"""Folder of the trained policies."""
SEED = max(plan.CHAIN, key=lambda seed: plan.CHAIN[seed].responses)
NUMBERS = [8 * 2**i for i in range(7)]
"""Tested sizes of a part of a dump, in responses."""
MOST = 16
"""Maximum number of parts with equally many responses that are cut from a dump."""
SHARE = 0.9
"""Minimum share of the parts with n responses that the diagnosis must name right for n responses to be enough."""
BY_EDIT = {fault: plan.middle(sizes) for fault, sizes in edits.SIZES.items() if fault not in real.SIZES}


def main() -> None:
    """Cut and diagnose the dumps that the record lacks, record how many parts were named right, then print the table."""
    done = set(pd.read_csv(RECORD)["key"]) if RECORD.exists() else set()
    for key, parts in cuts(RUNS, lambda key: str(key) not in done):
        counted(key, parts).to_csv(RECORD, mode="a", header=not RECORD.exists(), index=False)
        print(key, flush=True)
    record = pd.read_csv(RECORD)
    print(markdown(table(record[record["key"].str.endswith(f" {SEED}")])))


def cuts(folder: Path, wanted: inject.Wanted) -> Iterator[tuple[Key, list[Made]]]:
    """Generate (key, parts of its dump) for wanted keys: no fault, and each fault with a plug-in, at its middle size."""

    def cut(key: Key) -> bool:
        usual = (
            key.source == "chain"
            and key.seed == SEED
            and key.precision in plan.SAMPLERS
            and key.fault not in {*BY_EDIT, *plan.HELD_OUT, *plan.FORMER}
        )
        at_middle = key.size == (0 if key.fault == "clean" else plan.middle(real.SIZES[key.fault]))
        edited = key.fault == "clean" and any(wanted(_of_edit(key, fault)) for fault in BY_EDIT)
        return usual and at_middle and (wanted(key) or edited)

    for made in inject.chain(folder, lambda key: cut(key) if key.fault in real.CASES else False):
        whole = list(cut_up(made))
        if wanted(made.key):
            yield made.key, whole
        if made.key.fault == "clean":
            for fault, size in BY_EDIT.items():
                if wanted(key := _of_edit(made.key, fault)):
                    parts = (edits.edited(part.batch, fault, size, SEED + i) for i, part in enumerate(whole))
                    yield key, [Made(key, part, baseline=made.baseline) for part in parts]


def _of_edit(key: Key, fault: str) -> Key:
    return key._replace(fault=fault, size=BY_EDIT[fault])


def cut_up(made: Made) -> Iterator[Made]:
    """Cut a dump into disjoint parts of n responses, for each n in `NUMBERS`. At most `MOST` parts for each n."""
    for n in NUMBERS:
        for start in range(0, len(made.batch.mask) - n + 1, n)[:MOST]:
            rows = slice(start, start + n)
            names = ("tokens", "entropy", "repeat_prob")
            parts = {name: None if (whole := getattr(made, name)) is None else whole[rows] for name in names}
            yield made._replace(batch=made.batch.rows(rows), **parts)


def counted(key: Key, parts: list[Made]) -> pd.DataFrame:
    """Diagnose the parts of a dump. Returns a row per number of responses: number of parts, and number diagnosed right."""
    expected = NAMES.get(key.fault, key.fault)
    rows = []
    for part in parts:
        usual = key.precision if part.baseline is None else part.baseline
        found = diagnose(part.batch, usual=usual, tokens=part.tokens, predicted=Predicted(part.entropy, part.repeat_prob))
        right = found.kind == "consistent" if expected == "clean" else found.fault == expected and found.kind == "fault"
        rows.append({"responses": len(part.batch.mask), "parts": 1, "right": int(right)})
    of_number = pd.DataFrame(rows).groupby("responses", as_index=False).sum()
    return of_number.assign(key=str(key), fault=key.fault, size=key.size, precision=key.precision)


def table(record: pd.DataFrame) -> pd.DataFrame:
    """A row per fault and precision: parts named right by number of responses, and least number of responses that suffices."""
    rows = []
    for (fault, size, precision), part in record.groupby(["fault", "size", "precision"], sort=False):
        part = part.set_index("responses")
        short = [n for n in NUMBERS if part.loc[n, "right"] < SHARE * part.loc[n, "parts"]]
        least = next((n for n in NUMBERS if n > max(short, default=0)), None)
        shares = {str(n): f"{part.loc[n, 'right']}/{part.loc[n, 'parts']}" for n in NUMBERS}
        rows.append({"fault": fault, "size": f"{size:g}", "precision": precision, "needs": str(least or "more"), **shares})
    return pd.DataFrame(rows)


if __name__ == "__main__":
    with command():
        main()
