"""Figures of early warnings of a collapse, of the upper bound of weights, of the learning rate, and of cost."""

from __future__ import annotations

import pandas as pd

from analysis.figures.heat import heat_maps
from analysis.figures.outcome import enough, too_few
from analysis.figures.style import FigureOrReason, apart, grid, legend_below, row_height, short
from analysis.labels import column as label
from analysis.labels import metric
from analysis.marks import NEUTRAL
from analysis.results import Results
from analysis.statistics.performance import HEALTHY
from analysis.statistics.predictors import HORIZON

BOUND, RATE = "correction.weight.upper", "actor.lr"
ONE_BOUND = "no correction has more than one upper bound"


def lead_times(results: Results) -> FigureOrReason:
    """The figure of each diagnostic as a warning of a collapse: its lead in steps, its shares of detections and false alarms."""
    table = results.warnings
    if not enough(results):
        return too_few(results)
    if table.empty or table.detected.isna().all():
        why = f" ({table.note.iloc[0]})" if len(table) else ""
        return f"a warning cannot be judged without collapsed and other runs of several seeds{why}"
    table = table.iloc[::-1].reset_index(drop=True)
    figure, axes = grid(3, 3, 1.2 + 0.4 * len(table), sharey=True)
    parts = {
        "median_lead": "median lead (steps)",
        "detected": "share detected; share of false alarms",
        "auc": f"AUC, {HORIZON} steps ahead",
    }
    for axis, (column, word) in zip(axes, parts.items(), strict=True):
        axis.plot(table[column], table.index, "o", color=NEUTRAL, label="detected", clip_on=False)
        axis.set_xlabel(word, fontsize=8)
        axis.grid(alpha=0.25)
    axes[1].plot(table.false_alarms, table.index, "o", color=NEUTRAL, markerfacecolor="none", label="false alarms")
    axes[1].set_xlim(-0.05, 1.05)
    axes[2].axvline(0.5, color=NEUTRAL, linewidth=0.8)
    axes[2].set_xlim(-0.05, 1.05)
    axes[0].set_xlim(left=0)
    axes[0].set_yticks(table.index, table.diagnostic.map(metric))
    legend_below(figure, axes[1:2])
    return figure


def bounds(results: Results) -> FigureOrReason:
    """Heat maps of collapses and mean last reward by the upper bound of importance weights: a bound per column.

    Rows: correction, precision, loss, and the other config values that differ between runs.
    """
    bounds_of = {run: values.get(BOUND) for run, values in results.flat.items()}
    upper = pd.Series(bounds_of, dtype=float).dropna()
    runs = results.runs_but([BOUND])
    if runs.empty or upper.empty:
        return ONE_BOUND
    runs = runs.assign(final=results.rewards.final[runs.index], same=runs.precision + " " + runs.loss + " " + runs.setting)
    bounded = runs[runs.index.isin(upper.index)]
    bounded = bounded.assign(bound=upper[bounded.index])
    bounded["row"] = bounded.correction + " | " + bounded.same
    if bounded.empty or bounded.groupby("row").bound.nunique().max() < 2:
        return ONE_BOUND
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
    maps = [(shares, "collapsed, by upper bound", True), (last, "last reward, mean, by upper bound", False)]
    return heat_maps(maps, rows, [*ends, "no correction"])


def frontier(results: Results) -> FigureOrReason:
    """Heat maps of uncorrected runs, setting by learning rate: shares that collapsed, and that reached a reward of HEALTHY."""
    rate = pd.Series({run: config["actor"]["lr"] for run, config in results.configs.items()})
    runs = results.runs_but([RATE])
    plain = runs[runs.correction == "none"]
    plain = plain.assign(lr=rate[plain.index], healthy=results.healthy[plain.index])
    if plain.empty or plain.lr.nunique() < 2:
        return "the sweep has one learning rate"
    plain["row"] = (plain.precision + " " + plain.loss + " " + plain.setting).str.strip()
    rows, columns = sorted(plain.row.unique()), [f"{lr:g}" for lr in sorted(plain.lr.unique())]
    maps = []
    for name, title in (("event", "collapsed"), ("healthy", f"reached {HEALTHY}")):
        cells = {
            (row, f"{lr:g}"): (part[name].mean(), f"{part[name].sum()}/{len(part)}")
            for (row, lr), part in plain.groupby(["row", "lr"])
        }
        maps.append((cells, f"{title}, by learning rate", name == "event"))
    return heat_maps(maps, rows, columns)


def costs(results: Results) -> FigureOrReason:
    """The figure of cost by arm (runs alike but for the seed): seconds per RL step, and shares of tokens left unused."""
    table = results.costs.iloc[::-1].reset_index(drop=True)
    columns = ("step_seconds", "tokens_rejected", "tokens_weighted_zero")
    shown = [column for column in columns if column in table and table[column].any()]
    if not shown:
        return "no run recorded the time of a step"
    labels = [short(arm, 44) for arm in apart(table.arm)]
    figure, axes = grid(len(shown), 3, 1.2 + max(0.26, row_height(labels, 8)) * len(table), sharey=True)
    for axis, column in zip(axes, shown, strict=True):
        axis.barh(table.index, table[column], color=[results.marks.arms[arm].colour for arm in table.arm], height=0.6)
        axis.set_xlabel(label(column))
        axis.locator_params(axis="x", nbins=4)
        axis.set_ylim(-0.6, len(table) - 0.4)
    axes[0].set_yticks(table.index, labels, fontsize=8)
    return figure
