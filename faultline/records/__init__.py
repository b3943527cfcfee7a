"""Records that ship with the package: runs of the benchmark, its quick set of regimes, and the tested rules of the verdict.

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
"""Columns of the recorded rows: what ran, how it ended, its first reward, and its last reward by deployed policy."""


def rows() -> pd.DataFrame:
    """The recorded runs of the benchmark, a row per run with COLUMNS; empty before any is recorded."""
    file = files(__name__) / ROWS
    if not file.is_file():
        return pd.DataFrame(columns=list(COLUMNS))
    with file.open() as opened:
        return pd.read_csv(opened, float_precision="round_trip", keep_default_na=False)


def quick() -> dict[str, list[str]]:
    """The benchmark's quick set of regimes: name -> overrides of the regime's config."""
    return {name: text.split() for name, text in yaml.safe_load((files(__name__) / QUICK).read_text()).items()}


def verdict() -> dict[str, Any]:
    """The frozen rules that choose a correction, and their measured scores, by deployed policy; empty before they are frozen.

    Policy -> v2 (that rule's cut-offs), best (the best constant arm), chosen (v2 or "best constant"; None before the held-out
    regimes are scored), regimes (their number), scores: rule -> mean, worst and in, see `experiments.leaderboard.scored`.
    """
    file = files(__name__) / VERDICT
    return json.loads(file.read_text()) if file.is_file() else {}
