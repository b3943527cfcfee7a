# %% [markdown]
# # Collapse and its predictors
# When runs collapse, what precedes a collapse, and whether a diagnostic warns without false alarms.
#
# It reads the sweep that `FAULTLINE_SWEEP` names, or that you write into the call of `load` below: run folders (`runs/demo`),
# W&B's offline files (`wandb-offline:runs/demo`), or a W&B server (`wandb:[entity/]project[:group]`, with `WANDB_API_KEY` set,
# and `WANDB_BASE_URL` for one of your own).

# %%
# %matplotlib inline
import os

from IPython.display import display

from analysis import tables
from analysis.figures import FIGURES
from analysis.load import load

results = load(os.environ.get("FAULTLINE_SWEEP", "runs/demo"))

# %%
FIGURES["survival"].draw(results)

# %%
tables.outcomes(results)

# %%
FIGURES["forest"].draw(results)

# %%
FIGURES["aligned"].draw(results)

# %%
display(results.causes)

# %% [markdown]
# ## Predictors
# Each threshold was chosen on the other seeds.

# %%
tables.warnings(results)

# %%
FIGURES["lead"].draw(results)

# %%
FIGURES["dose"].draw(results)

# %% [markdown]
# ## Ask your own question
# Change the metric and the step. Here: does the mismatch of the first 20 steps differ between runs that collapse and others?

# %%
early = results.steps[results.steps.step < 20]
early.groupby(early.run.astype(str).map(results.runs.outcome))["rollout_corr/k3_kl"].describe()
