"""The table of the runs at the edge of stability: `python -m experiments.edge FOLDER SWEEP ...`.

The plan is in docs/study.md. Written are FOLDER/endpoints.csv, a row per run, and FOLDER/table.md, a row per arm.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from analysis.frames import markdown
from analysis.load import load
from analysis.results import Results
from analysis.statistics.dose import LAST
from analysis.statistics.survival import difference_p, holm_of_planned
from harness.boundary import command
from harness.errors import UserError

SEEDS = {30, 31, 32, 33, 34}
"""Of the plan. An arm without all of them is left out."""
TRAINED = 50
"""Last RL steps whose mean reward on training prompts is reported."""
W4A4 = "nvfp4_w4a4 pg"
NOISE = "selection noise, fp32 pg"
FAMILIES = {
    "precision": [(arm, "fp32 pg") for arm in ("bf16 pg", "fp8_tensor pg", "nvfp4 pg", W4A4)],
    "the demo's remedies": [(f"{W4A4} {remedy}", W4A4) for remedy in ("sequence-mask", "token-truncate", "r3")],
    "other remedies": [
        (arm, W4A4)
        for arm in (
            *(f"{W4A4} {remedy}" for remedy in ("sequence-truncate", "token-mask", "reject-geo_rs", "sequence-mask r3")),
            f"advised band, {W4A4} reject-geo_rs",
        )
    ],
    "selection noise": [(NOISE, "fp32 pg"), (f"{NOISE} r3", NOISE)],
    "dense twin": [(f"dense, {W4A4}", "dense, fp32 pg")],
}
"""Family of Holm's adjustment -> (arm, the arm that it is compared with)."""
PREFIX = {"moe_advised": "advised band, ", "moe_noise": "selection noise, ", "moe_dense": "dense, "}
"""Name of a sweep -> what stands before its arms in the table."""


def rewards(results: Results, trained: int) -> pd.DataFrame:
    """A row per ended run: arm, seed, reward (the endpoint: the mean of the last LAST held-out evaluations), best,
    training_reward (mean of the last `trained` RL steps), outcome, onset, k3."""
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
    """A row per ended run of the arms that have every seed: `rewards`, and run."""
    if not sources:
        raise UserError("name the sweeps of the study after the folder of the tables, as runs/demo runs/moe")
    tables = []
    for source in sources:
        table = rewards(load(source), TRAINED)
        tables.append(table.assign(arm=PREFIX.get(source.name, "") + table.arm).rename_axis("run").reset_index())
    columns = ["arm", "seed", "run", "reward", "best", "training_reward", "outcome", "onset", "k3"]
    runs = pd.concat(tables)[columns].sort_values(["arm", "seed"]).reset_index(drop=True)
    whole = runs.groupby("arm").seed.transform(lambda seeds: set(seeds) >= SEEDS)
    return runs[whole & runs.seed.isin(SEEDS)].reset_index(drop=True)


def compared(runs: pd.DataFrame) -> pd.DataFrame:
    """A row per comparison whose arms have runs: family, arm, reference, difference of the means, p and Holm's p.

    A comparison that was planned and has no runs counts in its family, with p = 1.
    """
    rows = []
    for family, pairs in FAMILIES.items():
        found = []
        for arm, reference in pairs:
            one, other = (runs.reward[runs.arm == name].to_numpy() for name in (arm, reference))
            if len(one) and len(other):
                names = {"family": family, "arm": arm, "reference": reference}
                found.append(names | {"difference": one.mean() - other.mean(), "p": difference_p(one, other)})
        adjusted = holm_of_planned([row["p"] for row in found], len(pairs))
        rows += [row | {"holm_p": p} for row, p in zip(found, adjusted, strict=True)]
    return pd.DataFrame(rows, columns=["family", "arm", "reference", "difference", "p", "holm_p"])


def table(runs: pd.DataFrame) -> pd.DataFrame:
    """A row per arm, as people read it."""
    comparisons = compared(runs).set_index("arm")
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
    runs = endpoints(sources)
    out.mkdir(parents=True, exist_ok=True)
    runs.to_csv(out / "endpoints.csv", index=False)  # to the last bit: rewards that are equal must stay so
    text = markdown(table(runs))
    (out / "table.md").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    with command():
        main(Path(*sys.argv[1:2]), [Path(source) for source in sys.argv[2:]])
