"""Cost and gain of importance weights by response length: `python -m experiments.lengths FOLDER` makes the table.

FOLDER holds files <precision>-<tokens>.csv, each the paired.csv of a run of `faultline gradient --paired`. FOLDER/table.md has
the results by length. The plan is in docs/study.md, "Where the sequence weight pays".
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.plan import publish
from harness.boundary import command
from harness.errors import UserError

SHOWN = {
    "ppo none": "none",
    "ppo token_truncate": "token truncation at 2",
    "ppo sequence_truncate": "sequence truncation at 2",
    "ppo sequence_mask": "sequence mask at 2",
    "exact sequence weight": "the whole sequence weight",
}


def letter(response: str, record: dict[str, Any]) -> float:
    """Reward a response with the share of "e" among its letters, which every token can change; 0 without a letter."""
    letters = [character for character in response.lower() if character.isalpha()]
    return letters.count("e") / len(letters) if letters else 0.0


def by_length(folder: Path) -> pd.DataFrame:
    """Table with a row per rollout precision, length and method, sorted by length. Raises UserError if there are no files."""
    tables = [(*path.stem.rpartition("-")[::2], path) for path in folder.glob("*-[0-9]*.csv")]
    if not tables:
        raise UserError(f"{folder}: no <precision>-<tokens>.csv there; copy the paired.csv of each run there under such a name")
    return pd.DataFrame(
        [
            {
                "rollout": rollout,
                "tokens": tokens,
                "method": SHOWN[row["method"]],
                "sd / sd of none": _spread(row, "sd ratio", ".2f"),
                "bias / sd of none": _spread(row, "bias", ".2f"),
                "pays from, responses": _spread(row, "pays from", ",.0f").replace("inf", "never"),
            }
            for rollout, tokens, path in sorted(tables, key=lambda table: (table[0], len(table[1]), table[1]))
            for row in pd.read_csv(path).to_dict("records")
            if row["method"] in SHOWN
        ]
    )


def _spread(row: dict[str, Any], name: str, form: str) -> str:
    """The value in column `name` of a table row with its 95 % interval, formatted by `form`; empty if undefined."""
    if pd.isna(row[name]):
        return ""
    return f"{row[name]:{form}} ({row[f'{name} low']:{form}} to {row[f'{name} high']:{form}})"


if __name__ == "__main__":
    with command():
        publish(folder := Path(*sys.argv[1:2]), by_length(folder))
