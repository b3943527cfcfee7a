"""The gradient by length: the reward, and the order of the tables."""

from pathlib import Path

import pandas as pd
import pytest

from analysis.frames import markdown
from experiments.lengths import SHOWN, by_length, letter
from harness.errors import UserError


def test_the_share_of_a_letter():
    """E and e among T, h, E, n, e: two of five. Digits and spaces are no letters."""
    assert letter("ThE 12 ne", {}) == 0.4 and letter("123", {}) == 0


def test_tables_stand_by_length(tmp_path):
    columns = {f"{name}{part}": 0.5 for name in ("sd ratio", "bias") for part in ("", " low", " high")}
    pays = {"pays from": 88.0, "pays from low": 40.0, "pays from high": float("inf")}
    for name in ("fp8-64", "fp8-16", "fp8-128"):
        rows = [{"method": method, **columns, **(pays if method != "ppo none" else {})} for method in ("ppo icepop", *SHOWN)]
        pd.DataFrame(rows).to_csv(tmp_path / f"{name}.csv", index=False)
    found = by_length(tmp_path)
    assert list(dict.fromkeys(found.tokens)) == ["16", "64", "128"] and len(found) == 3 * len(SHOWN)
    assert found["bias / sd of none"][1] == "0.50 (0.50 to 0.50)"
    assert found["pays from, responses"][:2].tolist() == ["", "88 (40 to never)"]
    with pytest.raises(UserError, match="no <precision>-<tokens>"):
        by_length(tmp_path / "empty")


def test_the_recorded_table():
    recorded = Path(__file__).parents[2] / "experiments/study/smollm2/lengths"
    assert markdown(by_length(recorded)) + "\n" == (recorded / "table.md").read_text()
