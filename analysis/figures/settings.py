"""Figures over settings: what warned first, bounds of a correction, the stability frontier and its cost."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import survival, tables
from analysis.figures.style import COLOURS, MARKERS, grid, short
from analysis.load import Sweep, flatten

BOUND = "correction.weight.upper"


def lead_times(sweep: Sweep) -> Figure | str:
    """Per diagnostic how long before the collapse it alarmed, and how often it alarmed for nothing."""
    table = tables.warnings(sweep)
    if table.empty or table.detected.isna().all():
        return "Too few collapsed and surviving runs over seeds to judge a warning." + (
            f" ({table.said.iloc[0]})" if len(table) else ""
        )
    table = table.iloc[::-1].reset_index(drop=True)
    figure, axes = grid(3, 3, 1.2 + 0.4 * len(table), sharey=True)
    auc = next(column for column in table if column.startswith("AUC"))
    parts = {
        "median lead (steps)": "median lead (steps)",
        "detected": "of collapsed runs detected; of others false alarms",
        auc: auc,
    }
    for axis, (column, word) in zip(axes, parts.items(), strict=True):
        axis.plot(table[column], table.index, "o", color=COLOURS[1], label="detected")
        axis.set_xlabel(word, fontsize=8)
        axis.grid(alpha=0.25)
    axes[1].plot(table["false alarms"], table.index, "x", color=COLOURS[2], label="false alarms")
    axes[1].set_xlim(-0.05, 1.05)
    axes[1].legend(fontsize=7)
    axes[2].axvline(0.5, color="grey", linewidth=0.8)
    axes[2].set_xlim(-0.05, 1.05)
    axes[0].set_xlim(left=0)
    axes[0].set_yticks(table.index, table.diagnostic)
    return figure


def bounds(sweep: Sweep) -> Figure | str:
    """Share collapsed and last reward against the bound of a correction's weight; the uncorrected arm stands at ∞."""
    flat = {run: flatten(config) for run, config in sweep.configs.items()}
    keys = ("correction.weight.level", "correction.weight.action", BOUND)
    kind = {run: f"{values.get(keys[0])}-{values.get(keys[1])}" for run, values in flat.items() if values.get(keys[0])}
    upper = {run: flat[run].get(BOUND) for run in kind if flat[run].get(BOUND) is not None}
    runs = sweep.runs.loc[list(upper)].assign(kind=pd.Series(kind), upper=pd.Series(upper))
    if runs.empty or runs.groupby("kind").upper.nunique().max() < 2:
        return "No correction was run with more than one upper bound."
    reward = sweep.steps.dropna(subset=["eval/reward"]).groupby("run", observed=True)["eval/reward"].last()
    figure, axes = grid(2, 2, 3.4)
    end = runs.upper.max() * 3
    plain = sweep.runs[(sweep.runs.correction == "none") & sweep.runs.precision.isin(runs.precision)]
    for i, (name, mine) in enumerate(runs.groupby(["kind", "loss", "precision"])):
        style = {"color": COLOURS[i % 8], "marker": MARKERS[i // 8 % 8]}
        share = [survival.fraction(g.event.sum(), len(g)) for _, g in mine.groupby("upper")]
        x = sorted(mine.upper.unique())
        errors = [[s.value - s.lower for s in share], [s.upper - s.value for s in share]]
        axes[0].errorbar(x, [s.value for s in share], errors, capsize=2, label=short(" ".join(name)), **style)
        axes[1].plot(x, mine.assign(r=reward.reindex(mine.index)).groupby("upper").r.mean(), label=short(" ".join(name)), **style)
    for i, (_, mine) in enumerate(plain.groupby(["loss", "precision"])):
        axes[0].plot(end, mine.event.mean(), "s", color="grey", label="no correction" if not i else None)
        axes[1].plot(end, reward.reindex(mine.index).mean(), "s", color="grey")
    for axis, word in zip(axes, ("share collapsed (Clopper-Pearson)", "last held-out reward, mean"), strict=True):
        axis.set(xscale="log", xlabel="upper bound of the weight (right end: none)", ylabel=word, ylim=(-0.03, 1.03))
    axes[0].legend(fontsize=7)
    return figure


def frontier(sweep: Sweep) -> Figure | str:
    """Share collapsed over learning rate x precision without correction: where the edge of stability lies."""
    rate = pd.Series({run: config["actor"]["lr"] for run, config in sweep.configs.items()})
    plain = sweep.runs[sweep.runs.correction == "none"].assign(lr=rate)
    if plain.empty or plain.lr.nunique() < 2:
        return "One learning rate only, so there is no frontier to draw."
    losses = list(plain.loss.unique())
    figure, axes = grid(len(losses), 3, 2.8, sharey=True)
    for axis, loss in zip(axes, losses, strict=True):
        for i, (precision, mine) in enumerate(plain[plain.loss == loss].groupby("precision")):
            share = {lr: survival.fraction(g.event.sum(), len(g)) for lr, g in mine.groupby("lr")}
            errors = np.array([[s.value - s.lower, s.upper - s.value] for s in share.values()]).T
            style = {"color": COLOURS[i % 8], "marker": MARKERS[i % 8]}
            axis.errorbar(list(share), [s.value for s in share.values()], errors, capsize=2, label=precision, **style)
        axis.set(xscale="log", xlabel="learning rate", ylim=(-0.03, 1.03))
        axis.set_title(loss)
    axes[0].set_ylabel("share collapsed")
    axes[0].legend(fontsize=7)
    return figure


def costs(sweep: Sweep) -> Figure | str:
    """What an arm costs: seconds of a step, and tokens that its correction throws away."""
    table = tables.costs(sweep).iloc[::-1].reset_index(drop=True)
    shown = [column for column in ("step (s)", "tokens rejected", "tokens weighted 0") if column in table]
    if not shown:
        return "No run has recorded what a step takes."
    figure, axes = grid(len(shown), 3, 1.2 + 0.26 * len(table), sharey=True)
    for axis, column in zip(axes, shown, strict=True):
        axis.barh(table.index, table[column], color=COLOURS[1], height=0.6)
        axis.set_xlabel(column)
    axes[0].set_yticks(table.index, [short(arm, 60) for arm in table.arm], fontsize=8)
    return figure
