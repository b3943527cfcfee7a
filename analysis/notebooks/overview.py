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
# # Overview of a sweep
# What was run, what became of it, and what to know before reading on. `FAULTLINE_SWEEP` names the sweep: the folder of run
# folders, `wandb-offline:FOLDER`, or `wandb:[entity/]project[:group]`.

# %%
# %matplotlib inline
import os

from IPython.display import Markdown, display

from analysis import tables, words
from analysis.figures import FIGURES
from analysis.load import load

sweep = load(os.environ.get("FAULTLINE_SWEEP", "runs/demo"))
outcomes = tables.outcomes(sweep)

# %% [markdown]
# ## The answer

# %%
display(Markdown("\n".join(f"- {sentence}" for sentence in words.answer(sweep, outcomes, tables.warnings(sweep)))))

# %% [markdown]
# ## What failed, and what is uneven

# %%
display(Markdown("\n".join(f"- {problem}" for problem in sweep.problems) or "Nothing."))

# %%
tables.arms(sweep)

# %%
FIGURES["reward"].draw(sweep)

# %%
FIGURES["costs"].draw(sweep)

# %% [markdown]
# ## The rows themselves
# `sweep.runs` has a row per run, `sweep.steps` a row per run and step with a column per metric: from here on it is pandas.

# %%
sweep.steps.drop(columns=["run", "step"]).describe().T[["count", "mean", "min", "max"]]
