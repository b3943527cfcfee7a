"""RL of BF16 and FP8 rollouts for a given time."""

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
"""Steps that are run first, to see how long one takes; the first of them loads kernels."""


def check_learning(size: Size, minutes: float, out: Path) -> Table:
    """Both arms, each for half the time, kept as runs under `out`; evaluated ten times each.

    A run that is there already goes on from its last checkpoint.
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
    """The row of each step, and that of the evaluation after the last one."""
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
