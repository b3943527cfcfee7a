# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # BF16 against FP8
# The same losses and corrections under two rollout precisions: how large the mismatch is, what it does to the reward, and how
# runs of the same seed differ.

# %%
# %matplotlib inline
import os

import numpy as np
import pandas as pd

from analysis.figures import FIGURES
from analysis.load import load
from analysis.performance import paired_difference, rewards

sweep = load(os.environ.get("FAULTLINE_SWEEP", "runs/demo"))
runs = sweep.runs.join(rewards(sweep.runs, sweep.steps))

# %% [markdown]
# ## The mismatch by precision, median over runs and steps

# %%
metrics = ["rollout_corr/k3_kl", "mismatch/ess_sequence", "mismatch/log_ratio_max_abs"]
present = [metric for metric in metrics if metric in sweep.steps]
sweep.steps.groupby(sweep.steps.run.astype(str).map(runs.precision))[present].median()

# %% [markdown]
# ## Last reward of a precision less that of the fp32 control, by seed

# %%
rows = []
for key, mine in runs[runs.correction == "none"].groupby(["loss", "setting"]):
    by_seed = {precision: part.set_index("seed").final for precision, part in mine.groupby("precision")}
    for precision in by_seed.keys() - {"fp32"}:
        if "fp32" in by_seed and len(by_seed["fp32"].index.intersection(by_seed[precision].index)):
            found = paired_difference(by_seed[precision], by_seed["fp32"], np.random.default_rng(0))
            row = {"loss": " ".join(key).strip(), "precision": precision, "seeds": len(by_seed[precision])}
            rows.append(row | dict(zip(("difference", "lower", "upper"), found, strict=True)))
pd.DataFrame(rows)

# %%
FIGURES["survival"].draw(sweep)

# %%
FIGURES["density"].draw(sweep)

# %%
FIGURES["frontier"].draw(sweep)
