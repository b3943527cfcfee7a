"""The real training's tables: `python -m experiments.sums FOLDER [SWEEP]`.

The plan is in docs/study.md, "A real model learns sums". With a sweep FOLDER/endpoints.csv is written first, a row per run.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from analysis.frames import markdown
from analysis.load import load
from experiments.edge import rewards
from harness.boundary import command
from harness.errors import UserError

TRAINED = 10
"""Last RL steps whose mean reward on training prompts stands beside the endpoint; of as many is each median at first and last."""
WITHIN = 0.1
"""Of held-out reward: the margin of H11 and H12."""
BF16, FP8 = "bf16 ppo", "fp8_channel ppo"
PAIRS = {
    "H11": [(FP8, BF16)],
    "H12": [(f"{arm} token-truncate", arm) for arm in (BF16, FP8)],
    "not planned": [(f"{FP8} token-truncate", f"{BF16} token-truncate")],
}
"""Hypothesis -> (arm, the arm that it is compared with), paired by seed."""


def endpoints(sweep: Path) -> pd.DataFrame:
    """A row per ended run: arm, seed, start (the evaluation before the first step), reward (the mean of the last three), best,
    training_reward, k3 (nats per token, the median over steps), step_seconds (the median), generate_seconds, train_seconds.

    ess and tokens, a response's mean length, are medians over the first ten steps and over the last."""
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
    """A row per arm, as people read it: rewards seed by seed and their mean."""

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
    """A row per comparison: hypothesis, arm, reference, the mean of the differences by seed, the least and most of them, and in
    how many seeds the hypothesis holds. H10 compares each arm with its own start."""
    if missing := {arm for pairs in PAIRS.values() for pair in pairs for arm in pair} - set(runs.arm):
        raise UserError(f"no run of {', '.join(sorted(missing))} has ended; the plan compares four arms")
    reward = runs.pivot(index="seed", columns="arm", values="reward")
    start = runs.pivot(index="seed", columns="arm", values="start")
    rows = [("H10", arm, "its start", reward[arm] - start[arm]) for arm in reward]
    rows += [(name, arm, other, reward[arm] - reward[other]) for name, pairs in PAIRS.items() for arm, other in pairs]
    return pd.DataFrame(
        [
            {
                "hypothesis": name,
                "arm": arm,
                "against": other,
                "difference": f"{by_seed.mean():+.3f} ({by_seed.min():+.3f} to {by_seed.max():+.3f})",
                "holds": f"{int((by_seed > 0 if name == 'H10' else by_seed.abs() <= WITHIN).sum())} of {len(by_seed)}",
            }
            for name, arm, other, by_seed in ((*row, by_seed.dropna()) for *row, by_seed in rows)
        ]
    )


def main(folder: Path, sweeps: list[Path]) -> None:
    file = folder / "endpoints.csv"
    for sweep in sweeps:
        folder.mkdir(parents=True, exist_ok=True)
        endpoints(sweep).to_csv(file, index_label="run")
    if not file.is_file():
        raise UserError(f"{file}: not there; name the sweep too, as {folder} runs/smollm2_sums")
    runs = pd.read_csv(file)
    print(markdown(by_arm(runs)), markdown(compared(runs)), sep="\n\n")


if __name__ == "__main__":
    with command():
        main(Path(*sys.argv[1:2]), [Path(sweep) for sweep in sys.argv[2:3]])
