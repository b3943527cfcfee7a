# %% [markdown]
# # BF16 against FP8
# The same losses and corrections under two rollout precisions: the size of the mismatch, its effect on the reward, and the
# difference between runs of one seed.
#
# It reads the sweep that `FAULTLINE_SWEEP` names, or that you write into the call of `load` below: run folders (`runs/demo`),
# W&B's offline files (`wandb-offline:runs/demo`), or a W&B server (`wandb:[entity/]project[:group]`, with `WANDB_API_KEY` set,
# and `WANDB_BASE_URL` for one of your own).

# %%
# %matplotlib inline
import os

import numpy as np
import pandas as pd

from analysis.figures import FIGURES
from analysis.load import load
from analysis.statistics.performance import paired_difference

results = load(os.environ.get("FAULTLINE_SWEEP", "runs/demo"))
runs = results.runs.join(results.rewards)

# %% [markdown]
# ## The mismatch by precision, median over runs and steps

# %%
metrics = ["rollout_corr/k3_kl", "mismatch/ess_sequence", "mismatch/log_ratio_max_abs"]
present = [metric for metric in metrics if metric in results.steps]
results.steps.groupby(results.of("precision"))[present].median()

# %% [markdown]
# ## Last reward: difference of a precision from the control, over shared seeds
#
# The interval of five seeds or fewer covers less than 95%; of three seeds it covers at most 75 %.

# %%
rows = []
for key, mine in runs[runs.correction == "none"].groupby(["loss", "setting"]):
    control = mine[mine.control].set_index("seed").final
    for precision, part in mine[~mine.control].groupby("precision"):
        final = part.set_index("seed").final
        if shared := len(control.index.intersection(final.index)):
            interval = paired_difference(final, control, np.random.default_rng(0))
            row = {"loss": " ".join(key).strip(), "precision": precision, "seeds": shared}
            rows.append(row | dict(zip(("difference", "lower", "upper"), interval, strict=True)))
pd.DataFrame(rows)

# %%
FIGURES["survival"].draw(results)

# %%
FIGURES["density"].draw(results)

# %%
FIGURES["frontier"].draw(results)

# %% [markdown]
# ## Ask your own question
# Change the metric. Here: how does the mismatch of each precision change from the first to the last tenth of a run?

# %%
tenth = results.steps.step // (results.steps.step.max() / 10 + 1)
part = results.steps[tenth.isin([0, 9])]
k3 = part.groupby([results.of("precision"), tenth.map({0: "first tenth", 9: "last tenth"})])["rollout_corr/k3_kl"].median()
k3.unstack()
