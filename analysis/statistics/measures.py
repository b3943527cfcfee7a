"""Summaries of recorded metrics per run and per arm (runs alike but for the seed): mismatch, evaluations, collapses, cost."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.labels import coarseness
from analysis.statistics.arms import order

EVALUATED = (
    "eval/stderr",
    "rollout_corr/k3_kl",
    "mismatch/ess_sequence",
    "mismatch/log_ratio_max_abs",
    "actor/grad_norm",
    "actor/entropy",
    "correction/kept_tokens",
    "correction/weight_zero",
)
"""Metrics that the table of evaluations shows beside the held-out reward."""


def per_row(steps: pd.DataFrame, values: pd.Series) -> pd.Series:
    """For each row of `steps`, the value of its run in `values`, which is indexed by run id; NaN if the run has none."""
    known = values.reindex(steps.run.cat.categories).to_numpy()
    return pd.Series(known[steps.run.cat.codes], index=steps.index)


def measures(runs: pd.DataFrame, steps: pd.DataFrame, rewards: pd.DataFrame) -> pd.DataFrame:
    """A row per run: its held-out rewards and its mismatch.

    Columns: final_reward, best_reward; k3, the median over steps (nats per token); ess_sequence_min; log_ratio_max (nats);
    persistence, the correlation of the log ratios over 20 weight syncs (median over steps); the mean shares tokens_rejected and
    tokens_weighted_zero. For all but the rewards only steps up to the onset of a collapse count, since later ones cannot have
    caused it.
    """
    before = ~(steps.step > per_row(steps, runs.onset))
    run = steps.run[before]

    def summary(metric: str, how: str) -> pd.Series:
        values = steps[metric][before].groupby(run, observed=True).agg(how) if metric in steps else pd.Series(dtype=float)
        return values.reindex(runs.index)

    return pd.DataFrame(
        {
            "final_reward": rewards.final,
            "best_reward": rewards.best,
            "k3": summary("rollout_corr/k3_kl", "median"),
            "ess_sequence_min": summary("mismatch/ess_sequence", "min"),
            "log_ratio_max": summary("mismatch/log_ratio_max_abs", "max"),
            "persistence": summary("mismatch/persistence_20", "median"),
            "tokens_rejected": 1 - summary("correction/kept_tokens", "mean"),
            "tokens_weighted_zero": summary("correction/weight_zero", "mean"),
        }
    )


def evaluations(runs: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """A row per run and evaluation: arm (runs alike but for the seed), seed, step, held-out reward, metrics of the mismatch."""
    if "eval/reward" not in steps:
        return pd.DataFrame(columns=["run", "arm", "seed", "step", "eval/reward"])
    probed = [name for name in steps if name.startswith("probe/")]
    names = ["run", "step", "eval/reward", *(name for name in EVALUATED if name in steps), *probed]
    rows = steps.loc[steps["eval/reward"].notna(), names].astype({"run": str})
    return rows.join(runs[["arm", "seed"]], on="run")[["run", "arm", "seed", *names[1:]]]


def causes(runs: pd.DataFrame) -> pd.DataFrame:
    """A row per arm (runs alike but for the seed), detector and cause of collapses: their number `runs`, and median_onset.

    detector: the one that dated the collapse. cause: the earliest warning before it, or `no warning`. median_onset: an RL step.
    """
    collapsed = runs[runs.event].assign(cause=lambda runs: runs.cause.fillna("no warning"))
    counted = collapsed.groupby(["arm", "detector", "cause"], sort=False).onset.agg(["size", "median"]).reset_index()
    return counted.rename(columns={"size": "runs", "median": "median_onset"})


def costs(runs: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """A row per arm (runs alike but for the seed): median seconds of a step and its parts, mean shares of unused tokens."""
    arm = per_row(steps, runs.arm)
    parts = {"time/step": "step_seconds", "time/generate": "generate_seconds", "time/train": "train_seconds"}
    table = pd.DataFrame({column: steps[name].groupby(arm).median() for name, column in parts.items() if name in steps})
    if "correction/kept_tokens" in steps:
        table["tokens_rejected"] = (1 - steps["correction/kept_tokens"]).groupby(arm).mean()
    if "correction/weight_zero" in steps:
        table["tokens_weighted_zero"] = steps["correction/weight_zero"].groupby(arm).mean()
    return table.reindex(order(runs)).rename_axis("arm").reset_index()


def probes(runs: pd.DataFrame, steps: pd.DataFrame, best: pd.Series, healthy: float) -> pd.DataFrame:
    """A row per arm (runs alike but for the seed) and probed precision: the mismatch of rollouts sampled in this precision.

    Columns: median K3, least sequence ESS, largest |log ratio|. reached_healthy: share of the arm's ended runs whose best
    held-out reward was at least `healthy`, such as `4/5`. best: best held-out reward of each run.
    """
    names = sorted({column.split("/")[1] for column in steps if column.startswith("probe/")}, key=coarseness)
    arm = per_row(steps, runs.arm)
    rows = []
    for name in order(runs) if names else []:
        mine, own = runs[runs.arm == name], steps[arm == name]
        ended = mine.index[mine.outcome != "unfinished"]
        reached = f"{int(np.sum(best[ended] >= healthy))}/{len(ended)}"
        for precision in names:
            row = {
                "arm": name,
                "reached_healthy": reached,
                "probed": precision,
                "k3": median(own[f"probe/{precision}/k3_kl"]),
                "ess_sequence_min": own[f"probe/{precision}/ess_sequence"].min(),
                "log_ratio_max": own[f"probe/{precision}/log_ratio_max_abs"].max(),
            }
            rows.append(row)
    return pd.DataFrame(rows)


def median(values: pd.Series) -> float:
    """The median of the values that are not NaN; if there are none, NaN without numpy's warning."""
    known = values.dropna()
    return float(known.median()) if len(known) else np.nan
