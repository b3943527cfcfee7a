# %% [markdown]
# # The frames
# What `Results` has, one question answered by hand with pandas, and one figure drawn from scratch.
#
# It reads the sweep that `FAULTLINE_SWEEP` names, or that you write into the call of `load` below: run folders (`runs/demo`),
# W&B's offline files (`wandb-offline:runs/demo`), or a W&B server (`wandb:[entity/]project[:group]`, with `WANDB_API_KEY` set,
# and `WANDB_BASE_URL` for one of your own).

# %%
# %matplotlib inline
import os

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from analysis.load import load
from harness.run.metrics import METRICS

results = load(os.environ.get("FAULTLINE_SWEEP", "runs/demo"))

# %% [markdown]
# ## What there is
# Two frames are the record: `runs` has a row per run, and `steps` a row per run and step. All others are computed from them when
# they are first asked for.

# %%
frames = {
    "runs": "a row per run: arm, seed, state, outcome, onset of a collapse",
    "steps": "a row per run and step, a column per metric; NaN where a run did not record it",
    "rewards": "per run the last and the best held-out reward",
    "measures": "per run its rewards and its mismatch up to a collapse",
    "evaluations": "a row per run and evaluation",
    "outcomes": "a row per arm, with its comparison with its reference arm",
    "costs": "per arm the seconds of a step and the tokens thrown away",
}
shapes = [getattr(results, name).shape for name in frames]
pd.DataFrame({"rows": [rows for rows, _ in shapes], "columns": [n for _, n in shapes], "what": frames.values()}, index=[*frames])

# %%
results.runs[["arm", "precision", "loss", "correction", "setting", "seed", "outcome", "onset"]]

# %% [markdown]
# Each column of `steps` has a meaning and a unit in `METRICS`. `results.configs[run]` is the config of a run, with all defaults.

# %%
metrics = [name for name in results.steps if name in METRICS]
pd.DataFrame([METRICS[name][:2] for name in metrics], index=metrics, columns=["meaning", "unit"])

# %% [markdown]
# ## A question, by hand
# Does a run whose mismatch is large in its first half end lower? K3 of the first half of each run, beside its last reward.
# Spearman's ρ is a correlation of ranks: it needs no shape of the relation. Few runs give a wide spread, so read
# it with their number.

# %%
half = results.steps[results.steps.step < results.steps.step.max() / 2]
early = half.groupby(half.run.astype(str))["rollout_corr/k3_kl"].median().rename("early_k3")
table = results.runs[["arm", "seed"]].join(early).join(results.rewards.final)
print(f"Spearman's ρ = {table.early_k3.rank().corr(table.final.rank()):.2f} over {len(table.dropna())} runs")
table.sort_values("early_k3")

# %% [markdown]
# ## A figure, from scratch
# The mean held-out reward of each arm over its seeds, with their range. Step 1: the rows that hold an evaluation. Step 2: a
# column per arm. Step 3: a line and a band for each. `results.marks` gives an arm its colour and its dash, as in every figure.

# %%
evaluated = results.steps.dropna(subset=["eval/reward"])
by_arm = evaluated.assign(arm=evaluated.run.astype(str).map(results.runs.arm)).groupby(["arm", "step"])["eval/reward"]
curves = by_arm.agg(["mean", "min", "max"])

figure, axis = plt.subplots(figsize=(9, 4), layout="constrained")
for arm in results.arms[:8]:
    curve, mark = curves.loc[arm], results.marks.arms[arm]
    axis.plot(curve.index, curve["mean"], label=arm, color=mark.colour, linestyle=mark.dash)
    axis.fill_between(curve.index, curve["min"], curve["max"], alpha=0.15, color=mark.colour, linewidth=0)
axis.set(xlabel="RL step", ylabel="held-out reward")
_ = figure.legend(loc="outside lower center", ncols=2, fontsize=8)

# %% [markdown]
# ## Ask your own question
# Change the column. Here: how far apart are the seeds of an arm at its end? A difference below this spread says nothing.

# %%
results.runs[["arm"]].join(results.rewards.final).groupby("arm").final.agg(["mean", "std", "count", np.ptp])
