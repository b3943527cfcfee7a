"""Records that ship with the package: rows of the benchmark, its quick set of regimes, and the tested rules of the verdict.

`python -m experiments.leaderboard` writes them.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import pandas as pd
import yaml

ROWS, QUICK, VERDICT = "rows.csv", "quick.yaml", "verdict.json"
"""Names of the files: a row per run of the benchmark, the quick set of regimes, and the rules with their scores."""
COLUMNS = ("entry", "regime", "seed", "digest", "outcome", "start", "trainer", "sampler")
"""Columns of ROWS, see `experiments.benchmark.ended`."""


def rows() -> pd.DataFrame:
    """The recorded runs; empty before any is recorded."""
    file = files(__name__) / ROWS
    if not file.is_file():
        return pd.DataFrame(columns=list(COLUMNS))
    with file.open() as opened:
        return pd.read_csv(opened, float_precision="round_trip", keep_default_na=False)


def quick() -> dict[str, list[str]]:
    """The quick set: name of a regime -> its overrides."""
    return {name: text.split() for name, text in yaml.safe_load((files(__name__) / QUICK).read_text()).items()}


def verdict() -> dict[str, Any]:
    """The frozen rules of each deployed policy with what the study measured; empty before the rules are frozen.

    Policy -> v2 (its cut-offs), best (the best constant), chosen (v2 or "best constant"; None before the held-out regimes are
    scored), regimes (their number), and scores: rule -> mean, worst and in, see `experiments.leaderboard.scored`.
    """
    file = files(__name__) / VERDICT
    return json.loads(file.read_text()) if file.is_file() else {}
