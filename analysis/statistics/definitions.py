"""Running the collapse detectors again on recorded evaluations, with other definitions of a drawdown or to check a record."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from analysis.labels import brief
from analysis.statistics.arms import order
from harness.collapse import detect

DELTAS, LENGTHS = (0.2, 0.3, 0.5, 0.7), (1, 3, 5)
"""Definitions of a drawdown: each pair of a δ and an m is tried. δ: share of the gain in reward that is lost. m: number of
consecutive evaluations at which so much is lost."""

Curves = dict[str, list[dict[str, float]]]
"""The evaluations of runs, by run id. Each has step, eval/reward and eval/stderr, in the format of the collapse detectors."""


def curves(steps: pd.DataFrame) -> Curves:
    """The evaluations of each run that began at step 0. Branched runs are left out, because they lack earlier ones."""
    if not {"eval/reward", "eval/stderr"} <= set(steps.columns):
        return {}
    whole = steps.groupby("run", observed=True).step.transform("min") == 0
    rows = steps.loc[whole, ["run", "step", "eval/reward", "eval/stderr"]].dropna()
    evaluated: Curves = {str(run): [] for run in rows.run.cat.remove_unused_categories().cat.categories}
    for run, row in zip(rows.pop("run"), rows.to_dict("records"), strict=True):
        evaluated[run].append(row)
    return evaluated


def of_reward(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Parameters of the run's detectors that read the held-out reward (drawdown and learning), by the detector's name."""
    configured = config["collapse"]["detectors"]
    return {name: configured[name] for name in ("drawdown", "learning") if name in configured}


def reread(rows: list[dict[str, float]], config: dict[str, Any]) -> dict[str, int]:
    """Run the detectors of held-out reward in `config` on the evaluations `rows`. Returns onsets (RL steps) by detector."""
    return {name: event["onset"] for name, event in detect(rows, of_reward(config)).items()}


def robustness(runs: pd.DataFrame, configs: dict[str, dict[str, Any]], evaluated: Curves) -> pd.DataFrame:
    """Number of runs with a drawdown: a row per arm (runs alike but for the seed), a column (δ, m) per pair of DELTAS, LENGTHS.

    A row is NaN if no run of the arm has both evaluations and a drawdown detector.
    """
    definitions = pd.MultiIndex.from_product([DELTAS, LENGTHS], names=["delta", "consecutive"])
    counts: dict[str, np.ndarray] = {}
    for run in runs.itertuples():
        configured = configs[run.Index]["collapse"]["detectors"].get("drawdown")
        if configured is not None and run.Index in evaluated:
            counts[run.arm] = counts.get(run.arm, 0) + np.array(_fires(evaluated[run.Index], configured))
    return pd.DataFrame(counts, index=definitions, dtype=float).T.reindex(order(runs))


def _fires(rows: list[dict[str, float]], configured: dict[str, Any]) -> list[bool]:
    """Whether the drawdown detector fires on `rows`: a bool per pair (δ, m). A larger δ or m asks for more."""

    def fires(delta: float, m: int) -> bool:
        return bool(detect(rows, {"drawdown": configured | {"delta": delta, "consecutive": m}}))

    pairs = list(product(DELTAS, LENGTHS))
    if not fires(*pairs[0]):
        return [False] * len(pairs)
    return [True] * len(pairs) if fires(*pairs[-1]) else [fires(*pair) for pair in pairs]


def disagreements(runs: pd.DataFrame, configs: dict[str, dict[str, Any]], evaluated: Curves) -> list[str]:
    """A sentence per run and detector whose onset computed from the run's evaluations differs from the run's event."""
    sentences = []
    for run, rows in evaluated.items():
        mine, watched = runs.loc[run], of_reward(configs[run])
        again = reread(rows, configs[run])
        for name in watched:
            if again.get(name) != mine.onsets.get(name):
                by_rows, by_events = (_onset(onsets.get(name)) for onsets in (again, mine.onsets))
                run_name = f"{brief(mine.arm)} seed {mine.seed}"
                sentences.append(f"{run_name}: {name} has {by_rows} by the rows and {by_events} by the events.")
    return sentences


def _onset(at: int | None) -> str:
    return "no onset" if at is None else f"its onset at step {at}"
