"""Report on how the diagnosis named the faults of the planned dumps: confusion matrix, and comparison with the plan's aims."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from analysis.frames import markdown
from experiments.faults import edits, real, sound
from experiments.faults.inject import STALE
from experiments.faults.plan import AIM_ACCUSED, AIM_NAMED, FORMER, HELD_OUT, middle
from harness.errors import UserError

NAMES = {
    "bos": "prompt", "template": "prompt", "prefix": "prompt", "top_p": "truncated_sampling", "top_k": "truncated_sampling",
    "prompt_in_mask": "mask", "prompt_fill": "mask", "padding": "mask", "log2": "log_base", "log10": "log_base",
    "eos_trainer": "eos", "eos_rollout": "eos", "rollout_zero": "fill", "rollout_floor": "fill", "penalty": "sampler",
    "draft": "sampler",
}  # fmt: skip
"""Name that the diagnosis gives an injected fault, by the injected fault's name, where the two names differ."""
KINDS = (*(f"-{kind}" for kind in sound.EDITS), "-micro_batches", "trainer_bf16")
"""Ends of the source, or starts of the arm, of the kinds of dumps without a fault that are new in the fourth plan."""
MOVING = ("raw_logprobs", "top_p", "top_k")
"""Injected faults that move the mean ratio for certain."""
SIZES = edits.SIZES | real.SIZES | {"stale": tuple(STALE)}


def read(record: Path) -> pd.DataFrame:
    """Read the record of diagnosed dumps as a table. Raises UserError if there is no record.

    Added columns: said (the diagnosed fault, "unknown" or "consistent"), right (whether `said` is right, by `plan.HELD_OUT` for
    faults without a plug-in), bare_right (the same for the diagnosis without entropies and baseline), middle (whether the
    size is the middle of the fault's tested ones), plain_right (as bare_right; absent from the records of the first three plans).
    """
    if not record.exists():
        raise UserError(f"{record}: no dump is recorded; give --make")
    frame = pd.read_csv(record, keep_default_na=False)
    expected = frame["fault"].map(lambda fault: NAMES.get(fault, fault)).replace("clean", "consistent")
    by_question = frame["fault"].map(HELD_OUT | FORMER)
    for part in (*(("plain_",) if "plain_kind" in frame else ()), "bare_", ""):
        kind, named = frame[f"{part}kind"], frame[f"{part}named"]
        frame["said"] = named.where(kind == "fault", kind)
        of_question = (kind == "unknown") | ((kind == "fault") & (frame[f"{part}question"] == by_question))
        frame[f"{part}right"] = (frame["said"] == expected).where(by_question.isna(), of_question)
    frame["middle"] = [
        fault in SIZES and size == middle(SIZES[fault]) for fault, size in frame[["fault", "size"]].itertuples(index=False)
    ]
    return frame


def report(record: Path) -> str:
    """Return the tables of `aims` and `matrix`, made from the record, as Markdown."""
    frame = read(record)
    tables = [
        aims(frame),
        matrix(frame),
        *([kinds(frame), answers(frame, "plain_"), answers(frame, "")] if "plain_right" in frame else []),
    ]
    return "\n\n".join(map(markdown, tables))


def answers(frame: pd.DataFrame, columns: str) -> pd.DataFrame:
    """A row per group of dumps of all sizes, without edited columns, and how many got which answer.

    frame: as `read` returns it. columns: "plain_", answers from verl's default columns, or "", from all columns.
    """
    clean, moving = frame["fault"] == "clean", frame["fault"].isin(MOVING)
    unruled = frame["fault"].isin([*HELD_OUT, *FORMER])
    whole = (frame["fault"] == "swapped") & (frame["size"] == 1)
    edited = frame["fault"].isin(edits.SIZES.keys() - real.SIZES.keys()) | whole
    known = ~clean & ~unruled & ~edited & ~moving
    bugs = frame[known]["fault"].map(lambda fault: NAMES.get(fault, fault)).nunique()
    parts = {
        "logged before temperature, or after a cut as top-p": moving,
        f"{bugs} other known bugs": known,
        "bugs that it has no rule for": unruled,
        "no bug": clean,
    }
    rows = []
    for name, part in parts.items():
        kind = frame[part][f"{columns}kind"]
        fault = kind == "fault"
        named = fault & frame[part][f"{columns}right"] & ~unruled[part]
        rows.append(
            [name, len(kind), named.sum(), (fault & ~named).sum(), (kind == "unknown").sum(), (kind == "consistent").sum()]
        )
    return pd.DataFrame(rows, columns=["what was wrong", "batches", "named", "wrong name", "`UNKNOWN`", "`consistent`"])


def kinds(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per kind of dumps without a fault: their number, and how many were right with all columns, bare and plain."""
    clean = frame[frame["fault"] == "clean"]
    places = clean["source"] + " " + clean["precision"]
    found = places.map(lambda place: next((kind for kind in KINDS if kind in place), "of the third plan"))
    rows = []
    for kind, part in clean.groupby(found):
        right = {name: int(part[f"{name}_right"].sum()) for name in ("bare", "plain")}
        rows.append({"no fault": kind, "number": len(part), "right": int(part["right"].sum()), **right})
    return pd.DataFrame(rows)


def aims(frame: pd.DataFrame) -> pd.DataFrame:
    """Table with a row per aim of `plan`: the dumps concerned, their number, how many the diagnosis got right, the aimed share.

    bare: the number that the diagnosis got right without the trainer's entropies and a baseline K3. plain: also without token
    ids and advantages.
    """
    clean, left_out, former = frame["fault"] == "clean", frame["fault"].isin(list(HELD_OUT)), frame["fault"].isin(list(FORMER))
    named, new = frame["middle"] & ~left_out & ~former, frame["source"] == "chain-micro_batches"
    parts = {
        "faults at their middle size": (named & ~new, f"at least {AIM_NAMED:.0%}"),
        "no fault": (clean, f"at least {1 - AIM_ACCUSED:.0%}, and all"),
        "left-out faults": (left_out, "all"),
        "faults that earlier plans left out": (former, ""),
        **({"middle size, trainer in BF16": (named & new, f"at least {AIM_NAMED:.0%}")} if new.any() else {}),
    }
    rows = [
        {
            "dumps": name,
            "number": int(part.sum()),
            "right": int(frame[part]["right"].sum()),
            **{name: int(frame[part][f"{name}_right"].sum()) for name in ("bare", "plain") if f"{name}_right" in frame},
            "aim": aim,
        }
        for name, (part, aim) in parts.items()
    ]
    return pd.DataFrame(rows)


def matrix(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per fault: its sizes, dumps diagnosed right out of all dumps at each size, and wrong answers over all sizes."""
    rows = []
    for fault, part in frame.assign(size=frame["size"].where(frame["fault"] != "clean", 0)).groupby("fault", sort=False):
        by_size = [(size, group["right"]) for size, group in part.groupby("size", sort=False)]
        wrong = part.loc[~part["right"], "said"].value_counts()
        rows.append(
            {
                "injected": f"{fault} (left out)" if fault in HELD_OUT else fault,
                "sizes": ", ".join(f"{size:g}" for size, _ in by_size),
                "right": ", ".join(f"{int(right.sum())}/{len(right)}" for _, right in by_size),
                "wrong answers": ", ".join(f"{answer} {count}" for answer, count in wrong.items()),
            }
        )
    return pd.DataFrame(rows)
