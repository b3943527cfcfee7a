"""Figures of outcomes by arm (runs alike but for the seed): survival, steps gained, last rewards, heat maps, reward curves."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import offset_copy

from analysis.figures import heat
from analysis.figures.style import (
    FigureOrReason,
    apart,
    chunks,
    grid,
    key,
    label_outer,
    legend_below,
    row_height,
    short,
    subplots,
)
from analysis.marks import CONTROL, NEUTRAL, Mark
from analysis.results import Results
from analysis.statistics import survival
from analysis.statistics.arms import order
from analysis.statistics.outcomes import SIGNIFICANT

CURVE_POINTS = 200
"""Maximum number of points of a drawn curve. More would not be visible."""
LEAST_SPAN = 0.3
"""Minimum range (highest less lowest reward) of a reward axis, so that small differences look small."""
PLAIN = "no correction"
"""Title of the panel that shows the runs without a correction."""
RISKS = 5
"""Number of evenly spaced optimizer steps at which a survival plot states how many runs are still at risk of a collapse."""


def too_few(results: Results) -> str:
    """Return a clause on why a figure is not drawn: how many collapses it needs, and how many the sweep has."""
    collapses = int(results.runs.event.sum())
    return f"it takes {survival.ENOUGH} collapses, and there {'is' if collapses == 1 else 'are'} {collapses or 'none'}"


def enough(results: Results) -> bool:
    """Whether the sweep has at least `survival.ENOUGH` collapses, so that times to collapse are drawn."""
    return int(results.runs.event.sum()) >= survival.ENOUGH


class Panel(NamedTuple):
    """A panel of a figure, whose arms (runs alike but for the seed) have one loss. calm: their other config values but noise."""

    title: str
    loss: str
    calm: str
    arms: list[str]


def survival_curves(results: Results) -> FigureOrReason:
    """The figure of the share of runs not yet collapsed, in panels by loss, other config values and source of mismatch."""
    if not enough(results):
        return too_few(results)
    collapsed = set(results.runs.arm[results.runs.event])
    begun = results.runs[results.runs.time > 0]
    every = panels(begun, results.arms)
    shown = [panel for panel in every if collapsed & set(panel.arms)]
    figure, axes = grid(len(shown), 3, 3.4, sharey=True)
    quiet = [f"{panel.title} ({begun.arm.isin(panel.arms).sum()} runs)" for panel in every if panel not in shown]
    if quiet:
        more = f" and {len(quiet) - 10} more" if len(quiet) > 10 else ""
        title = f"Not drawn, without a collapse so far: {', '.join(quiet[:10])}{more}"
        figure.suptitle(short(title, 130), fontsize=9, x=0.01, ha="left")
    end = (results.runs.step * results.runs.updates).max()
    for axis, panel in zip(axes, shown, strict=True):
        for i, arm in enumerate(panel.arms):
            _survival(figure, axis, begun[begun.arm == arm], results.marks.arms[arm], i, end)
        axis.set_title(panel.title)
        axis.set(xlim=(0, end), ylim=(-0.02, 1.04))
        axis.set_xticks(np.linspace(0, end, RISKS))
        axis.set_xlabel("optimizer step; above, runs at risk", fontsize=7, labelpad=3 + 9 * len(panel.arms))
        axis.tick_params(labelsize=7)
    axes[0].set_ylabel("share not collapsed")
    legend_below(figure, [], _looks(results, shown))
    return figure


def _survival(figure: Figure, axis: Axes, runs: pd.DataFrame, mark: Mark, place: int, end: float) -> None:
    """Draw the Kaplan-Meier curve of `runs`, a bar with its interval right of step `end`, and the numbers at risk below.

    place: number of the curve in the panel, which moves its bar right and its numbers at risk down.
    """
    km = survival.kaplan_meier(runs.time.to_numpy(), runs.event.to_numpy(bool))
    axis.step(km.time, km.survival, where="post", linewidth=1.6, **mark.line)
    # A band for each arm would cover the others. If no run is left at risk, the last interval before that is drawn.
    last = (km if km.survival.iloc[-1] == 0 else km[km.lower > 0]).iloc[-1]
    axis.plot([end * (1.03 + 0.025 * place)] * 2, [last.lower, last.upper], color=mark.colour, linewidth=1.4, clip_on=False)
    censored = runs.time[~runs.event].to_numpy()
    axis.plot(censored, np.interp(censored, km.time, km.survival), "|", color=mark.colour, markersize=6)
    below = -20 - 9 * place
    beside = offset_copy(axis.transAxes, figure, x=-14, y=below, units="points")
    axis.plot(0, 0, mark.marker, color=mark.colour, markersize=4, transform=beside, clip_on=False)
    for at in np.linspace(0, end, RISKS):
        options: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "center", "fontsize": 7}
        risk = f"{(runs.time >= at).sum()}"
        axis.annotate(risk, (at, 0), xytext=(0, below), xycoords=("data", "axes fraction"), **options)


def panels(runs: pd.DataFrame, order: list[str]) -> list[Panel]:
    """Divide a sweep's arms (runs alike but for the seed) among panels of a figure, at most eight in each.

    Arms share panels if they agree in the loss and in all other config values but those of precision, correction and noise. The
    first panel compares all uncorrected arms. Each source of mismatch with corrected arms also has a panel of its own, which
    compares them with the uncorrected arm. If one of these has all uncorrected arms, the first panel is left out. Titles state
    only what differs between panels.
    """
    arms = runs.drop_duplicates("arm").set_index("arm")
    arms = arms.loc[[arm for arm in order if arm in arms.index]].reset_index()
    groups: dict[tuple[str, str, str], list[str]] = {}
    for (calm, loss), part in arms.groupby(["calm", "loss"], sort=False):
        by_source = {str(source): mine for source, mine in part.groupby("source", sort=False)}
        remedied = {source: list(mine.arm) for source, mine in by_source.items() if (mine.correction != "none").any()}
        plain = list(part.arm[part.correction == "none"])
        if not any(set(plain) <= set(mine) for mine in remedied.values()):
            groups[calm, PLAIN, loss] = plain
        groups |= {(calm, source, loss): mine for source, mine in remedied.items()}
    kinds = list(dict.fromkeys([PLAIN, *(kind for _, kind, _ in groups)]))
    places = sorted(groups, key=lambda place: (place[0], kinds.index(place[1]), place[2]))
    differ = [len({place[i] for place in places}) > 1 for i in range(3)]
    multiples = []
    for calm, kind, loss in places:
        words = (loss, kind, calm)
        title = " · ".join(word for word, differs in zip(words, differ[::-1], strict=True) if differs and word)
        parts = chunks(groups[calm, kind, loss])
        titles = [short((title + part_of(i, parts)).strip(), 32) for i in range(len(parts))]
        multiples += [Panel(name, loss, calm, part) for name, part in zip(titles, parts, strict=True)]
    return multiples


def part_of(place: int, parts: list) -> str:
    """Suffix of the title of panel number `place` (from 0), such as " (2 of 3)", if several panels share one title."""
    return f" ({place + 1} of {len(parts)})" if len(parts) > 1 else ""


def _looks(results: Results, shown: list[Panel]) -> dict[str, Line2D]:
    """Lines of a legend by label, one per source of mismatch and correction in the panels `shown`. "control" comes first."""
    arms = results.runs.drop_duplicates("arm").set_index("arm").loc[[arm for panel in shown for arm in panel.arms]]
    legend: dict[str, Line2D] = {}
    for arm, row in arms.sort_values("control", ascending=False, kind="stable").iterrows():
        name = row.source if row.correction == "none" else f"{row.source} {row.correction}"
        legend.setdefault("control" if row.control else short(name), key(results.marks.arms[str(arm)]))
    return legend


def forest(results: Results) -> FigureOrReason:
    """The figure of gains in restricted mean survival time: correction over no correction, or mismatch over no mismatch."""
    table = results.outcomes
    table = table[table.collapse_p.notna()].iloc[::-1].reset_index(drop=True)
    if not enough(results):
        return too_few(results)
    if table.empty:
        return "no arm that ended can be compared: neither it nor its reference arm has a collapse"
    labels = [f"{short(arm, 48)}  (n={known})" for arm, known in zip(apart(table.arm), table.known, strict=True)]
    figure, ((axis,),) = subplots(1, 1, 1.2 + max(0.32, row_height(labels, 8)) * len(table))
    for i, row in table.iterrows():
        dash = ":" if row.known <= survival.FEW else "-"
        mark = results.marks.arms[row.arm]
        axis.plot([row.steps_gained_low, row.steps_gained_high], [i, i], color=mark.colour, linewidth=2, linestyle=dash)
        face = mark.colour if pd.notna(row.steps_gained_low) else "none"
        axis.plot(row.steps_gained, i, mark.marker, color=mark.colour, markersize=6, markerfacecolor=face)
        weak = " (too few)" if row.least_p > SIGNIFICANT else ""
        p = f"p = {row.collapse_holm_p:.2g}{weak}"
        axis.annotate(p, (1.01, i), xycoords=("axes fraction", "data"), va="center", fontsize=8)
    axis.axvline(0, color=NEUTRAL, linewidth=0.8)
    axis.set_ylim(-0.7, len(table) - 0.3)
    axis.set_yticks(range(len(table)), labels, fontsize=8)
    axis.set_xlabel(
        "RMST difference from the reference arm (optimizer steps)\n"
        "95% bootstrap over seeds; dotted: at most five seeds, which cover less; open: equal seeds, no interval"
    )
    return figure


def ends(results: Results) -> FigureOrReason:
    """The figure of each ended run's last held-out reward: a row for runs alike but for the seed, sorted by loss."""
    final = results.rewards.final
    runs = results.runs.assign(final=final)[(results.runs.outcome != "unfinished") & final.notna()]
    if runs.empty:
        return "no run has ended"
    rows = runs.drop_duplicates("arm").set_index("arm").loc[order(runs)].reset_index()
    rows = rows.sort_values(["loss", "calm"], kind="stable").reset_index(drop=True)
    sizes = runs.groupby("arm").size()[rows.arm]
    labels = [f"{short(arm, 48)}  (n={size})" for arm, size in zip(apart(rows.arm), sizes, strict=True)]
    figure, ((axis,),) = subplots(1, 1, 1.0 + max(0.24, row_height(labels, 8)) * len(rows))
    for y, arm in rows.iterrows():
        mine = runs[runs.arm == arm.arm]
        mark = results.marks.arms[arm.arm]
        for fell, part in mine.groupby("event"):
            face = mark.colour if fell else "none"
            axis.plot(part.final, [y] * len(part), mark.marker, color=mark.colour, markerfacecolor=face, markersize=6, alpha=0.8)
        axis.plot(mine.final.mean(), y, "|", color=mark.colour, markersize=14, markeredgewidth=1.8)
        if y and (arm.loss, arm.calm) != tuple(rows.loc[y - 1, ["loss", "calm"]]):
            axis.axhline(y - 0.5, color=NEUTRAL, linewidth=0.5)
    axis.set_yticks(range(len(rows)), labels, fontsize=8)
    low, high = runs.final.min(), runs.final.max()
    axis.set(ylim=(len(rows) - 0.4, -0.6), xlim=(min(low, high - LEAST_SPAN) - 0.02, high + 0.02), xlabel="last held-out reward")
    return figure


def heat_maps(results: Results) -> FigureOrReason:
    """The heat maps of collapses and of mean last reward: precision and correction against loss and other config values."""
    table = results.combinations
    if table.empty:
        return "no run has ended"
    shares, last = {}, {}
    for arm in table.to_dict("records"):
        place = arm["down"], arm["across"]
        never = " †" if arm["never_learned"] else ""
        shares[place] = arm["collapsed"] / arm["known"], f"{arm['collapsed']}/{arm['known']}{never}"
        if pd.notna(arm["mean"]):
            difference = f"\n{round(arm['from_control'], 2) + 0.0:+.2f}" if pd.notna(arm["from_control"]) else ""
            last[place] = arm["mean"], f"{arm['mean']:.2f}{never}{difference}"
    rows, columns = list(table.down.unique()), list(table.across.unique())
    if len(columns) == 1:
        return "all arms have one loss and setting, so that it would have one column"
    below = "; below, its difference from the control" if table.from_control.notna().any() else ""
    maps = [(last, f"last reward{below}", False)]
    if table.collapsed.any():  # otherwise the map would hold zeros alone
        maps.insert(0, (shares, "collapsed, of ended runs", True))
    return heat.heat_maps(maps, rows, columns)


def reward_curves(results: Results) -> FigureOrReason:
    """The figure of held-out reward over RL steps, in panels by loss, other config values and source of mismatch.

    Up to ten runs of the control, which has no mismatch, are drawn pale behind.
    """
    none = "no run has recorded a held-out reward"
    if "eval/reward" not in results.steps:
        return none
    evaluated = results.steps[["run", "step", "eval/reward"]].dropna()
    begun = results.runs[results.runs.index.isin(evaluated.run)]
    if begun.empty:
        return none
    shown = panels(begun, order(begun))
    losses = begun.loss.nunique()
    columns = losses if 1 < losses <= 4 and len(shown) % losses == 0 else 3
    figure, axes = grid(len(shown), columns, 2.4 if len(shown) <= 9 else 1.9, sharex=True, sharey=True)
    by_run = {run: rows for run, rows in evaluated.groupby("run", observed=True)}
    controls = begun[begun.control]
    for axis, panel in zip(axes, shown, strict=True):
        behind = controls[(controls.loss == panel.loss) & (controls.calm == panel.calm) & ~controls.arm.isin(panel.arms)]
        for run in behind.index[:10]:
            curve = thinned(by_run[run].step, by_run[run]["eval/reward"])
            axis.plot(*curve, linewidth=0.7, color=CONTROL, alpha=0.3, zorder=0, gid=run)
        for arm in panel.arms:
            _rewards(axis, begun[begun.arm == arm], by_run, results.marks.arms[arm])
        axis.set_title(panel.title)
        axis.grid(alpha=0.2)
    low, high = evaluated["eval/reward"].min(), evaluated["eval/reward"].max()
    axes[0].set_ylim(min(low, high - LEAST_SPAN) - 0.02, high + 0.02)
    label_outer(axes, "RL step", "held-out reward")
    legend_below(figure, [], _looks(results, shown))
    return figure


def _rewards(axis: Axes, runs: pd.DataFrame, by_run: dict[str, pd.DataFrame], mark: Mark) -> None:
    """Draw held-out reward of runs alike but for the seed: each if at most five, else the median with ten faint ones behind."""
    curves, few = [by_run[run] for run in runs.index], len(runs) <= survival.FEW
    marked: dict[str, Any] = {"marker": mark.marker, "markersize": 3.5}
    for run, curve in zip(runs.index[:10], curves, strict=False):
        x, y = thinned(curve.step, curve["eval/reward"])
        options = mark.line | marked | {"markevery": sparse(x)} if few else {"color": mark.colour, "alpha": 0.18}
        axis.plot(x, y, linewidth=1.0 if few else 0.7, gid=run, **options)
    if not few:
        pooled = pd.concat(curves).groupby("step")["eval/reward"].agg(["median", "size"])
        middle = pooled["median"][pooled["size"] == len(curves)]  # else it would jump where a run's record ends
        x, y = thinned(middle.index, middle)
        axis.plot(x, y, **mark.line, **marked, markevery=sparse(x), linewidth=1.6)


def sparse(x: np.ndarray) -> int:
    """Number of points from one marker to the next, such that a curve with the points `x` has about five markers."""
    return max(1, len(x) // 5)


def thinned(x, y) -> tuple[np.ndarray, np.ndarray]:
    """The curve (x, y) reduced to at most CURVE_POINTS points, including the last."""
    keep = np.unique(np.linspace(0, len(x) - 1, min(len(x), CURVE_POINTS)).astype(int))
    return np.asarray(x)[keep], np.asarray(y)[keep]
