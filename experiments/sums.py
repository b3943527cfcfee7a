"""Tables of the study in which a real model learns sums: `python -m experiments.sums FOLDER [SWEEP]`.

The plan is in docs/study.md, "A real model learns sums". If a sweep is given, FOLDER/endpoints.csv is written first, with a row
per run. FOLDER/table.md has a table of the arms and one of the comparisons.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.load import load
from experiments.edge import rewards
from experiments.plan import Comparisons, StudyPlan, extremes, publish, record, recorded
from harness.boundary import command
from harness.errors import UserError

TRAINED = 10
"""Number of last RL steps for the mean training reward. ESS and response length are medians of as many first and last steps."""
WITHIN = 0.1
"""Maximum difference of held-out reward, in either direction, with which hypotheses H11 and H12 of docs/study.md hold."""
BF16, FP8 = "bf16 ppo", "fp8_channel ppo"
ARMS = [arm + correction for arm in (BF16, FP8) for correction in ("", " token-truncate")]
START = ", at its start"
"""Suffix of an arm's name. The name with it stands for the arm's rewards before the first step, the reference of H10."""


def within(differences: np.ndarray) -> np.ndarray:
    return np.abs(differences) <= WITHIN


PLAN = StudyPlan(
    families=[
        Comparisons("H10", [(arm, arm + START) for arm in ARMS], test=None, holds=lambda differences: differences > 0),
        Comparisons("H11", [(FP8, BF16)], test=None, holds=within),
        Comparisons("H12", [(f"{arm} token-truncate", arm) for arm in (BF16, FP8)], test=None, holds=within),
        Comparisons("not planned", [(f"{FP8} token-truncate", f"{BF16} token-truncate")], test=None, holds=within),
    ],
    paired="seed",
    limits=extremes,
)


def endpoints(sweep: Path) -> pd.DataFrame:
    """Table with a row per ended run. Columns: arm (config without the seed), seed, and measurements of the run.

    start: held-out reward before the first step. reward, best: mean of the last three held-out rewards, and the highest of all.
    training_reward: mean reward of the last TRAINED steps. k3: in nats per token, median over steps. step_seconds,
    generate_seconds, train_seconds: durations, medians over steps. ess_first, ess_last, tokens_first, tokens_last: sequence ESS
    and mean length of a response, medians over the first and the last TRAINED steps.
    """
    results = load(sweep)
    steps = results.steps.assign(run=results.steps.run.astype(str)).groupby("run")
    table = rewards(results, TRAINED).drop(columns=["outcome", "onset"])
    table.insert(2, "start", steps["eval/reward"].first())
    for part in ("step", "generate", "train"):
        table[f"{part}_seconds"] = steps[f"time/{part}"].median()
    for name, metric in (("ess", "mismatch/ess_sequence"), ("tokens", "rollout/response_tokens")):
        table[f"{name}_first"] = steps[metric].apply(lambda values: values.dropna().iloc[:TRAINED].median())
        table[f"{name}_last"] = steps[metric].apply(lambda values: values.dropna().iloc[-TRAINED:].median())
    return table.sort_values(["arm", "seed"])


def by_arm(runs: pd.DataFrame) -> pd.DataFrame:
    """The table for display: a row per arm, with its rewards by seed, their mean, K3 and seconds per step."""

    def each(values: pd.Series) -> str:
        return " ".join(f"{value:.3f}" for value in values) + f" ({values.mean():.3f})"

    rows = [
        {
            "arm": arm,
            "start": each(mine.start),
            "held-out": each(mine.reward),
            "training": each(mine.training_reward),
            "K3": f"{mine.k3.median():.1e}",
            "seconds a step": f"{mine.step_seconds.median():.0f}",
        }
        for arm, mine in runs.groupby("arm", sort=False)
    ]
    return pd.DataFrame(rows)


def compared(runs: pd.DataFrame) -> pd.DataFrame:
    """The planned comparisons of two arms, by hypothesis, for display. Raises UserError if an arm has no run.

    Columns: hypothesis, arm, against (the reference), difference (mean, minimum and maximum over seeds), and holds (in how many
    seeds the hypothesis holds).
    """
    if missing := set(ARMS) - set(runs.arm):
        raise UserError(f"no run of {', '.join(sorted(missing))} has ended; the plan compares four arms")
    table = PLAN.compared(pd.concat([runs, runs.assign(arm=runs.arm + START, reward=runs.start)]))
    return pd.DataFrame(
        {
            "hypothesis": table.family,
            "arm": table.arm,
            "against": table.reference.mask(table.family == "H10", "its start"),
            "difference": [f"{row.difference:+.3f} ({row.low:+.3f} to {row.high:+.3f})" for row in table.itertuples()],
            "holds": [f"{row.holds} of {row.pairs}" for row in table.itertuples()],
        }
    )


def main(folder: Path, sweeps: list[Path]) -> None:
    for sweep in sweeps:
        record(folder, endpoints(sweep).rename_axis("run").reset_index())
    runs = recorded(folder, f"name the sweep too, as {folder} runs/smollm2_sums")
    publish(folder, by_arm(runs), compared(runs))


if __name__ == "__main__":
    with command():
        main(Path(*sys.argv[1:2]), [Path(sweep) for sweep in sys.argv[2:3]])
