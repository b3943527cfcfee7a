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
# Which level of a correction, at which bound, keeps a run healthy; and how much the answer depends on what is called a collapse.

# %%
# %matplotlib inline
import os

from analysis import tables
from analysis.figures import FIGURES
from analysis.load import load

sweep = load(os.environ.get("FAULTLINE_SWEEP", "runs/demo"))

# %%
FIGURES["heatmaps"].draw(sweep)

# %%
FIGURES["bounds"].draw(sweep)

# %%
FIGURES["gap"].draw(sweep)

# %% [markdown]
# ## The same counts under other definitions of a drawdown
# δ: share of the way from the best reward down to chance; m: evaluations in a row.

# %%
tables.robustness(sweep)
