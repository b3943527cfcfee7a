"""Figures over settings: what warned first, bounds of a correction, the stability frontier and its cost."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from analysis import tables
from analysis.figures.heat import heat, height
from analysis.figures.style import COLOURS, grid, short, subplots
from analysis.load import Sweep
from analysis.performance import HEALTHY, rewards
from harness.arms import flatten

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
        axis.plot(table[column], table.index, "o", color=COLOURS[1], label="detected", clip_on=False)
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
    """Share collapsed and last reward: level and action of a correction x its upper bound, the uncorrected arm beside it."""
    flat = {run: flatten(config) for run, config in sweep.configs.items()}
    upper = pd.Series({run: values.get(BOUND) for run, values in flat.items() if values.get(BOUND) is not None}, dtype=float)
    runs = sweep.runs[sweep.runs.outcome != "unfinished"]
    runs = runs.assign(final=rewards(runs, sweep.steps).final, same=runs.precision + " " + runs.loss + " " + runs.setting)
    bounded = runs[runs.index.isin(upper.index)].assign(bound=upper)
    bounded["row"] = bounded.correction.str.replace(rf" ?{BOUND}=\S+", "", regex=True) + " | " + bounded.same
    if bounded.empty or bounded.groupby("row").bound.nunique().max() < 2:
        return "No correction was run with more than one upper bound."
    rows, ends = list(bounded.row.unique()), [f"{bound:g}" for bound in sorted(bounded.bound.unique())]
    shares, last = {}, {}
    for row, mine in bounded.groupby("row", sort=False):
        parts = {f"{bound:g}": part for bound, part in mine.groupby("bound")}
        parts["no correction"] = runs[(runs.correction == "none") & (runs.same == mine.same.iloc[0])]
        for column, part in parts.items():
            if len(part):
                shares[row, column] = part.event.mean(), f"{part.event.sum()}/{len(part)}"
            if part.final.notna().any():
                last[row, column] = part.final.mean(), f"{part.final.mean():.2f}\nn={len(part)}"
    figure, axes = subplots(1, 2, height(len(rows)))
    heat(axes[0, 0], shares, rows, [*ends, "no correction"], "collapsed, by upper bound", True)
    heat(axes[0, 1], last, rows, [*ends, "no correction"], "last reward, mean, by upper bound", False)
    return figure


def frontier(sweep: Sweep) -> Figure | str:
    """Uncorrected runs that collapsed, and that reached a healthy reward: learning rate x whatever else differs."""
    rate = pd.Series({run: config["actor"]["lr"] for run, config in sweep.configs.items()})
    plain = sweep.runs[(sweep.runs.correction == "none") & (sweep.runs.outcome != "unfinished")].assign(lr=rate)
    if plain.empty or plain.lr.nunique() < 2:
        return "One learning rate only, so there is no frontier to draw."
    plain["healthy"] = rewards(plain, sweep.steps).best >= HEALTHY
    others = plain.setting.str.replace(r"actor\.lr=\S+", "", regex=True).str.split().str.join(" ")
    plain["row"] = (plain.precision + " " + plain.loss + " " + others).str.strip()
    rows, columns = sorted(plain.row.unique()), [f"{lr:g}" for lr in sorted(plain.lr.unique())]
    figure, axes = subplots(1, 2, height(len(rows)), sharey=True)
    for axis, name, title in zip(axes[0], ("event", "healthy"), ("collapsed", f"reached {HEALTHY}"), strict=True):
        cells = {
            (row, f"{lr:g}"): (part[name].mean(), f"{part[name].sum()}/{len(part)}")
            for (row, lr), part in plain.groupby(["row", "lr"])
        }
        heat(axis, cells, rows, columns, f"{title}, by learning rate", name == "event")
    return figure


def costs(sweep: Sweep) -> Figure | str:
    """What an arm costs: seconds of a step, and tokens that its correction throws away."""
    table = tables.costs(sweep).iloc[::-1].reset_index(drop=True)
    shown = [column for column in ("step (s)", "tokens rejected", "tokens weighted 0") if column in table and table[column].any()]
    if not shown:
        return "No run has recorded what a step takes."
    figure, axes = grid(len(shown), 3, 1.2 + 0.26 * len(table), sharey=True)
    for axis, column in zip(axes, shown, strict=True):
        axis.barh(table.index, table[column], color=COLOURS[1], height=0.6)
        axis.set_xlabel(column)
    axes[0].set_yticks(table.index, [short(arm, 60) for arm in table.arm], fontsize=8)
    return figure
