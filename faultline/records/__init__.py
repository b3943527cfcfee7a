"""Records that ship with the package: benchmark runs, a quick set of training setups, and rules that choose a correction.

`python -m experiments.leaderboard` writes them.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import pandas as pd
import yaml

ROWS, QUICK, VERDICT = "rows.csv", "quick.yaml", "verdict.json"
"""Names of the recorded files: benchmark runs, a quick set of training setups, and rules that choose a correction."""
COLUMNS = ("entry", "regime", "seed", "digest", "outcome", "start", "trainer", "sampler")
"""Columns of the recorded benchmark runs. entry: loss, advantage or correction. regime: training setup. digest: of the config.
start: first held-out reward. trainer, sampler: last held-out reward of the trainer's and of the sampler's policy."""


def rows() -> pd.DataFrame:
    """The recorded runs of the benchmark, a row per run with COLUMNS; empty before any is recorded."""
    file = files(__name__) / ROWS
    if not file.is_file():
        return pd.DataFrame(columns=list(COLUMNS))
    with file.open() as opened:
        return pd.read_csv(opened, float_precision="round_trip", keep_default_na=False)


def quick() -> dict[str, list[str]]:
    """The benchmark's quick set of training setups with a rollout mismatch (regimes): name -> config overrides."""
    return {name: text.split() for name, text in yaml.safe_load((files(__name__) / QUICK).read_text()).items()}


def verdict() -> dict[str, Any]:
    """Rules that choose a correction, with their scores, by deployed policy ("trainer", "sampler").

    For each policy: v2: cut-offs of the tuned rule. best: the best fixed correction. chosen: "v2" if it loses significantly
    less reward than `best`, else "best constant". regimes: number of the held-out setups.
    scores: rule -> mean and worst reward lost, as shares of the gain without mismatch, and `in`, the regime of the worst.
    `experiments.leaderboard.scored` computes them.
    """
    return json.loads((files(__name__) / VERDICT).read_text())
