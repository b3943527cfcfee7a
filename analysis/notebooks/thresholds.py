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
# # Thresholds and levels
# Which level and bound of a correction keep a run healthy, and how much that depends on the definition of a collapse.
#
# It reads what `FAULTLINE_SWEEP` names, or what you write into the call of `load` below:
#
# | source | name |
# |---|---|
# | run folders | `runs/demo` |
# | W&B's offline files, anywhere below a folder | `wandb-offline:runs/demo` |
# | a W&B server, with `WANDB_API_KEY` set, and `WANDB_BASE_URL` for one of your own | `wandb:[entity/]project[:group]` |

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
