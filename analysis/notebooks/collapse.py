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
# # Collapse and its predictors
# When runs collapse, what is seen just before, and whether a diagnostic could have warned without crying wolf.

# %%
# %matplotlib inline
import os

from analysis import tables, words
from analysis.figures import FIGURES
from analysis.load import load

sweep = load(os.environ.get("FAULTLINE_SWEEP", "runs/demo"))

# %%
FIGURES["survival"].draw(sweep)

# %%
words.readable(tables.outcomes(sweep))

# %%
FIGURES["forest"].draw(sweep)

# %%
FIGURES["aligned"].draw(sweep)

# %%
tables.causes(sweep)

# %% [markdown]
# ## Predictors
# The threshold that judges a run was chosen on the runs of the other seeds.

# %%
tables.warnings(sweep)

# %%
FIGURES["lead"].draw(sweep)

# %%
FIGURES["dose"].draw(sweep)
