# %% [markdown]
# # Overview of a sweep
# What was run, what became of it, and its caveats.
#
# It reads the sweep that `FAULTLINE_SWEEP` names, or that you write into the call of `load` below: run folders (`runs/demo`),
# W&B's offline files (`wandb-offline:runs/demo`), or a W&B server (`wandb:[entity/]project[:group]`, with `WANDB_API_KEY` set,
# and `WANDB_BASE_URL` for one of your own).

# %%
# %matplotlib inline
import os

from IPython.display import Markdown, display

from analysis import tables, verdicts
from analysis.figures import FIGURES
from analysis.load import load

results = load(os.environ.get("FAULTLINE_SWEEP", "runs/demo"))

# %% [markdown]
# ## The answer

# %%
display(Markdown("\n".join(f"- {sentence}" for sentence in verdicts.answer(results))))

# %% [markdown]
# ## Caveats

# %%
display(Markdown("\n".join(f"- {caveat}" for caveat in results.caveats) or "Nothing."))

# %%
tables.runs(results)

# %%
FIGURES["reward"].draw(results)

# %%
FIGURES["costs"].draw(results)

# %% [markdown]
# ## The rows themselves
# `results.runs` has a row per run, `results.steps` a row per run and step with a column per metric.

# %%
results.steps.drop(columns=["run", "step"]).describe().T[["count", "mean", "min", "max"]]

# %% [markdown]
# ## Ask your own question
# `results` has more columns than the tables above show: `results.runs.columns`, `results.measures.columns`. Change the query.
# Here: the best run of each arm, and the mismatch that it had.

# %%
results.runs[["arm", "seed", "outcome"]].join(results.measures).sort_values("best_reward").groupby("arm").tail(1)
