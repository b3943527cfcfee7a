# %% [markdown]
# # Thresholds and levels
# Which level and bound of a correction keep a run healthy, and how much that depends on the definition of a collapse.
#
# It reads the sweep that `FAULTLINE_SWEEP` names, or that you write into the call of `load` below: run folders (`runs/demo`),
# W&B's offline files (`wandb-offline:runs/demo`), or a W&B server (`wandb:[entity/]project[:group]`, with `WANDB_API_KEY` set,
# and `WANDB_BASE_URL` for one of your own).

# %%
# %matplotlib inline
import os

from analysis import tables
from analysis.figures import FIGURES
from analysis.load import load

results = load(os.environ.get("FAULTLINE_SWEEP", "runs/demo"))

# %%
FIGURES["heatmaps"].draw(results)

# %%
FIGURES["bounds"].draw(results)

# %%
FIGURES["gap"].draw(results)

# %% [markdown]
# ## The same counts under other definitions of a drawdown
# δ: share of the way from the best reward down to chance; m: evaluations in a row.

# %%
tables.robustness(results)

# %% [markdown]
# ## Ask your own question
# Change the columns. Here: which share of the tokens does each correction reject, and where do its runs end?

# %%
columns = ["tokens_rejected", "final_reward", "best_reward"]
results.runs[["correction", "setting"]].join(results.measures[columns]).groupby(["correction", "setting"]).mean()
