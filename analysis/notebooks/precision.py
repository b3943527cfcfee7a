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
# ## Last reward of a precision less that of the control, over the seeds that both have
#
# No interval of up to five seeds covers 95 %: of three it is 75 % at most.

# %%
rows = []
for key, mine in runs[runs.correction == "none"].groupby(["loss", "setting"]):
    control = mine[mine.control].set_index("seed").final
    for precision, part in mine[~mine.control].groupby("precision"):
        final = part.set_index("seed").final
        if shared := len(control.index.intersection(final.index)):
            found = paired_difference(final, control, np.random.default_rng(0))
            row = {"loss": " ".join(key).strip(), "precision": precision, "seeds": shared}
            rows.append(row | dict(zip(("difference", "lower", "upper"), found, strict=True)))
pd.DataFrame(rows)

# %%
FIGURES["survival"].draw(sweep)

# %%
FIGURES["density"].draw(sweep)

# %%
FIGURES["frontier"].draw(sweep)
