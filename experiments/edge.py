"""Tables of the study of RL at the edge of stability: `python -m experiments.edge FOLDER [SWEEP ...]` (plan: docs/study.md).

If sweeps are given, FOLDER/endpoints.csv is written first, with a row per run. FOLDER/table.md has a row per arm, whose
runs differ only in seed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from analysis.load import load
from analysis.results import Results
from analysis.statistics.dose import LAST
from experiments.plan import Comparisons, StudyPlan, publish, record, recorded
from harness.boundary import command

TRAINED = 50
"""Number of RL steps, at the end of a run, over which the reported reward on training prompts is averaged."""
W4A4 = "nvfp4_w4a4 pg"
NOISE = "selection noise, fp32 pg"
OTHERS = [f"{W4A4} {remedy}" for remedy in ("sequence-truncate", "token-mask", "reject-geo_rs", "sequence-mask r3")]
PLAN = StudyPlan(
    families=[
        Comparisons("precision", [(arm, "fp32 pg") for arm in ("bf16 pg", "fp8_tensor pg", "nvfp4 pg", W4A4)]),
        Comparisons("the demo's remedies", [(f"{W4A4} {remedy}", W4A4) for remedy in ("sequence-mask", "token-truncate", "r3")]),
        Comparisons("other remedies", [(arm, W4A4) for arm in (*OTHERS, f"advised band, {W4A4} reject-geo_rs")]),
        Comparisons("selection noise", [(NOISE, "fp32 pg"), (f"{NOISE} r3", NOISE)]),
        Comparisons("dense twin", [(f"dense, {W4A4}", "dense, fp32 pg")]),
    ],
    seeds=range(30, 35),
)
PREFIX = {"moe_advised": "advised band, ", "moe_noise": "selection noise, ", "moe_dense": "dense, "}
"""Prefix that the table gives the names of a sweep's arms (runs alike but for the seed), by the sweep's folder name."""


def rewards(results: Results, trained: int) -> pd.DataFrame:
    """Table with a row per ended run: arm (config without seed), seed, outcome, onset, reward, best, training_reward, k3.

    outcome: such as "collapsed". onset: step of a collapse. reward: mean of the last LAST held-out evaluations. best: highest of
    all evaluations. training_reward: mean reward of the last `trained` steps. k3: in nats per token, median over the steps
    up to the onset.
    """
    ended, steps = results.ended, results.steps.assign(run=results.steps.run.astype(str))
    evaluated = steps[steps["eval/reward"].notna()].groupby("run")["eval/reward"]
    sampled = steps[steps["reward/rollout"].notna()].groupby("run")["reward/rollout"]
    return ended[["arm", "seed", "outcome", "onset"]].assign(
        reward=evaluated.apply(lambda values: values.tail(LAST).mean()),
        best=evaluated.max(),
        training_reward=sampled.apply(lambda values: values.tail(trained).mean()),
        k3=results.measures.k3,
    )


def endpoints(sources: list[Path]) -> pd.DataFrame:
    """Table with a row per ended run of the configs that ran with every planned seed. sources: folders of the sweeps."""
    tables = []
    for source in sources:
        table = rewards(load(source), TRAINED)
        tables.append(table.assign(arm=PREFIX.get(source.name, "") + table.arm).rename_axis("run").reset_index())
    columns = ["arm", "seed", "run", "reward", "best", "training_reward", "outcome", "onset", "k3"]
    runs = pd.concat(tables)[columns].sort_values(["arm", "seed"]).reset_index(drop=True)
    return PLAN.complete(runs).reset_index(drop=True)


def table(runs: pd.DataFrame) -> pd.DataFrame:
    """The table for display, a row per arm (runs alike but for the seed): rewards, collapses, K3, comparison with another arm."""
    comparisons = PLAN.compared(runs).set_index("arm")
    rows = []
    for arm, mine in runs.groupby("arm", sort=False):
        row = {
            "arm": arm,
            "held-out": " ".join(f"{value:.2f}" for value in mine.reward),
            "mean": f"{mine.reward.mean():.2f}",
            "best": " ".join(f"{value:.2f}" for value in mine.best),
            "training": f"{mine.training_reward.mean():.2f}",
            "collapsed": _outcomes(mine.outcome),
            "K3": f"{mine.k3.median():.0e}",
            "against": "–",
        }
        if arm in comparisons.index:
            test = comparisons.loc[arm]
            row["against"] = f"{test.reference}: {test.difference:+.2f}, p {test.p:.3f}, Holm {test.holm_p:.3f}"
        rows.append(row)
    return pd.DataFrame(rows)


def _outcomes(outcome: pd.Series) -> str:
    never = (outcome == "never learned").sum()
    return f"{(outcome == 'collapsed').sum()}/{len(outcome)}" + (f", {never} never learned" if never else "")


def main(out: Path, sources: list[Path]) -> None:
    if sources:
        record(out, endpoints(sources))
    publish(out, table(recorded(out, "name the sweeps of the study after the folder of the tables, as runs/demo runs/moe")))


if __name__ == "__main__":
    with command():
        main(Path(*sys.argv[1:2]), [Path(source) for source in sys.argv[2:]])
