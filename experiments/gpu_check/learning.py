"""A check that runs RL with BF16 and with FP8 rollouts for a given time."""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import fmean, median

from experiments.gpu_check.model import Size
from experiments.gpu_check.section import Table, number
from harness.config import Config
from harness.run.folder import RunFolder
from harness.run.loop import train

ARMS = ("bf16", "fp8_channel")
TRIAL = 3
"""Number of RL steps in a trial that measures the time of a step; the first one loads kernels."""


def check_learning(size: Size, minutes: float, out: Path) -> Table:
    """Train a BF16 and an FP8 arm, each for half the time and with ten evaluations, as runs under `out`.

    An existing run continues from its last checkpoint.
    """
    rows = []
    for arm in ARMS:
        with tempfile.TemporaryDirectory() as scratch:
            metrics = _trained(size.config(f"rollout/precision={arm}", f"steps={TRIAL}", f"run.root={scratch}"))
        seconds = median(row["time/step"] for row in metrics[1:-1])
        steps = max(10, int(30 * minutes / seconds))
        config = size.config(f"rollout/precision={arm}", f"steps={steps}", f"evaluation.every={steps // 10}", f"run.root={out}")
        rows.append({"rollout": arm, "steps": str(steps)} | _curve(_trained(config), steps // 5))
    note = f"SmolLM2 on sums, {minutes:g} minutes in all. Rewards are means over the first and the last fifth of the steps."
    return Table("Learning", note, rows)


def _trained(config: Config) -> list[dict[str, float]]:
    """Train a run, and return the row of each step and of the evaluation after the last step."""
    train(config)
    return RunFolder(config.path).metrics()


def _curve(rows: list[dict[str, float]], fifth: int) -> dict[str, str]:
    rewards = [row["reward/rollout"] for row in rows if "reward/rollout" in row]
    evaluations = [row["eval/reward"] for row in rows if "eval/reward" in row]
    return {
        "first rewards": number(fmean(rewards[:fifth])),
        "last rewards": number(fmean(rewards[-fifth:])),
        "first evaluation": number(evaluations[0]),
        "last evaluation": number(evaluations[-1]),
        "median K3": number(median(row["rollout_corr/k3_kl"] for row in rows if "rollout_corr/k3_kl" in row)),
    }
