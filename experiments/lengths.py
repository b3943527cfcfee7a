"""The gradient by length: `python -m experiments.lengths FOLDER` prints what a weight costs, and from where it pays.

FOLDER holds <precision>-<tokens>.csv, each the gradient.csv of one run. The plan is in docs/study.md, "Where the sequence
weight pays".
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.frames import markdown
from harness.boundary import command
from harness.errors import UserError

BATCH = 32
"""Responses of a batch, of which sd is."""
SHOWN = {
    "ppo none": "none",
    "ppo token_truncate": "token truncation at 2",
    "ppo sequence_truncate": "sequence truncation at 2",
    "exact sequence weight": "the whole sequence weight",
}


def letter(response: str, record: dict[str, Any]) -> float:
    """The task's verifier: the share of the response's letters that are an e; 0 where there is no letter.

    Every token moves it, so that the true gradient shows in few responses at any length.
    """
    letters = [character for character in response.lower() if character.isalpha()]
    return letters.count("e") / len(letters) if letters else 0.0


def pays(method: Any, none: Any) -> str:
    """The numbers n of responses at which bias² + BATCH·sd²/n lies below that of no correction.

    method, none: rows with bias and sd, relative to the length of the true gradient. The two lines cross at
    n = BATCH·(sd²(method) − sd²(none)) / (bias²(none) − bias²(method)).
    """
    cost, gain = method.sd**2 - none.sd**2, none.bias**2 - method.bias**2
    if cost > 0 and gain > 0:
        return f"from {BATCH * cost / gain:,.0f}"
    if cost < 0 and gain < 0:
        return f"up to {BATCH * cost / gain:,.0f}"
    return "always" if cost <= 0 and gain >= 0 and (cost, gain) != (0, 0) else "never"


def compared(folder: Path) -> pd.DataFrame:
    """A row per rollout, length and method, by length. Raises UserError where there is no table."""
    tables = [(*path.stem.rpartition("-")[::2], path) for path in folder.glob("*-[0-9]*.csv")]
    if not tables:
        raise UserError(f"{folder}: no <precision>-<tokens>.csv there; copy the gradient.csv of each run there under such a name")
    rows = []
    for rollout, tokens, path in sorted(tables, key=lambda table: (table[0], len(table[1]), table[1])):
        found = {row.method: row for row in pd.read_csv(path).rename(columns=lambda name: name.replace(" ", "_")).itertuples()}
        for name, shown in SHOWN.items():
            row = found[name]
            rows.append({
                "rollout": rollout,
                "tokens": tokens,
                "method": shown,
                "bias": _interval(row, "bias"),
                "sd": _interval(row, "sd"),
                "pays, responses": pays(row, found["ppo none"]) if shown != "none" else "",
            })  # fmt: skip
    return pd.DataFrame(rows)


def _interval(row: Any, name: str) -> str:
    return f"{getattr(row, name):.2f} ({getattr(row, f'{name}_low'):.2f} to {getattr(row, f'{name}_high'):.2f})"


if __name__ == "__main__":
    with command():
        print(markdown(compared(Path(*sys.argv[1:2]))))
