"""Figures of what became of the arms: survival, steps of health gained, heat maps, curves of the reward."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis.figures.heat import heat, height
from analysis.figures.style import COLOURS, chunks, grid, label_outer, legend_below, look, short, subplots
from analysis.results import Results
from analysis.statistics import survival
from analysis.statistics.arms import order
from analysis.statistics.outcomes import SIGNIFICANT

CURVE_POINTS = 200
"""Steps at which a curve is drawn: more cannot be seen."""


def survival_curves(results: Results) -> Figure | str:
    """Share of runs not yet collapsed, per precision and loss, a line per correction, numbers at risk below."""
    if not results.runs.event.any():
        return "No run collapsed: every curve would be flat."
    collapsed = set(results.runs.arm[results.runs.event])
    begun = results.runs.arm[results.runs.time > 0]
    every = _panels(results.runs, [arm for arm in results.arms if arm in set(begun)])
    panels = [(key, part) for key, arms in every if collapsed & set(arms) for part in chunks(arms)]
    figure, axes = grid(len(panels), 3, 3.3, sharey=True)
    if quiet := [f"{' '.join(key).strip()} ({begun.isin(a).sum()} runs)" for key, a in every if not collapsed & set(a)]:
        more = f" and {len(quiet) - 10} more" if len(quiet) > 10 else ""
        title = f"Not drawn, without a collapse so far: {', '.join(quiet[:10])}{more}"
        figure.suptitle(short(title, 130), fontsize=9, x=0.01, ha="left")
    end = (results.runs.step * results.runs.updates).max()
    for axis, (key, arms) in zip(axes, panels, strict=True):
        ticks, risk = np.linspace(0, end, 5), []
        for i, arm in enumerate(arms):
            runs = results.runs[(results.runs.arm == arm) & (results.runs.time > 0)]
            km = survival.kaplan_meier(runs.time.to_numpy(), runs.event.to_numpy(bool))
            axis.step(km.time, km.survival, where="post", label=short(runs.correction.iloc[0]), **look(i), linewidth=1.4)
            # A band for each arm would cover the others. Where no run is left at risk the interval is that before.
            last = (km if km.survival.iloc[-1] == 0 else km[km.lower > 0]).iloc[-1]
            axis.plot([end * (1.03 + 0.025 * i)] * 2, [last.lower, last.upper], color=COLOURS[i], linewidth=1.4, clip_on=False)
            censored = runs.time[~runs.event].to_numpy()
            at = np.interp(censored, km.time, km.survival)
            axis.plot(censored, at, "|", color=COLOURS[i], markersize=6)
            risk.append([int((runs.time >= t).sum()) for t in ticks])
        axis.set_title(short(" ".join(key)))
        axis.set(xlim=(0, end), ylim=(-0.02, 1.04))
        words = ["\n".join(map(str, (f"{t:.0f}", *column))) for t, column in zip(ticks, zip(*risk, strict=True), strict=True)]
        axis.set_xticks(ticks, words, fontsize=7)
        axis.set_xlabel("optimizer step / runs at risk, as in the legend", fontsize=7)
        axis.legend(loc="best", fontsize=7)
    axes[0].set_ylabel("share not collapsed")
    return figure


def _panels(runs: pd.DataFrame, order: list[str]) -> list[tuple[tuple, list[str]]]:
    """Arms by (precision, loss, setting), in the order of arms."""
    arms = runs.drop_duplicates("arm").set_index("arm").loc[order].reset_index()
    return [(key, list(part.arm)) for key, part in arms.groupby(["precision", "loss", "setting"], sort=False)]


def forest(results: Results) -> Figure | str:
    """Steps of health gained on the reference arm, with its interval and Holm's p."""
    table = results.outcomes
    table = table[table.collapse_p.notna()].iloc[::-1].reset_index(drop=True)
    if not results.runs.event.any():
        return "No run collapsed, so no arm can gain steps on another."
    if table.empty:
        return "No arm that ended can be compared: neither it nor its reference arm has a collapse."
    figure, ((axis,),) = subplots(1, 1, 1.2 + 0.32 * len(table))
    for i, row in table.iterrows():
        dash = ":" if row.known <= survival.FEW else "-"
        axis.plot([row.steps_gained_low, row.steps_gained_high], [i, i], color=COLOURS[1], linewidth=2, linestyle=dash)
        spread = pd.notna(row.steps_gained_low)
        axis.plot(row.steps_gained, i, "o", color=COLOURS[2], markersize=5, markerfacecolor=COLOURS[2] if spread else "none")
        weak = " (too few)" if row.least_p > SIGNIFICANT else ""
        p = f"p = {row.collapse_holm_p:.2g}{weak}"
        axis.annotate(p, (1.01, i), xycoords=("axes fraction", "data"), va="center", fontsize=8)
    axis.axvline(0, color="grey", linewidth=0.8)
    axis.set_ylim(-0.7, len(table) - 0.3)
    axis.set_yticks(range(len(table)), [f"{short(r.arm, 60)}  (n={r.known})" for r in table.itertuples()], fontsize=8)
    axis.set_xlabel(
        "RMST difference from the reference arm (optimizer steps)\n"
        "95% bootstrap over seeds; dotted: at most five seeds, which cover less; open: equal seeds, no interval"
    )
    return figure


def ends(results: Results) -> Figure | str:
    """Last held-out reward of every run that has ended, a row per arm, the arms of a loss and setting together."""
    final = results.rewards.final
    runs = results.runs.assign(final=final)[(results.runs.outcome != "unfinished") & final.notna()]
    if runs.empty:
        return "No run has ended."
    rows = runs.drop_duplicates("arm").set_index("arm").loc[order(runs)].reset_index()
    rows = rows.sort_values(["loss", "setting"], kind="stable").reset_index(drop=True)
    figure, ((axis,),) = subplots(1, 1, 1.0 + 0.24 * len(rows))
    for y, arm in rows.iterrows():
        mine = runs[runs.arm == arm.arm]
        colour = COLOURS[0 if arm.control else 1 if arm.correction == "none" else 2]
        for fell, part in mine.groupby("event"):
            axis.plot(part.final, [y] * len(part), "x" if fell else "o", color=colour, markersize=5, alpha=0.7)
        axis.plot(mine.final.mean(), y, "|", color=colour, markersize=14, markeredgewidth=1.8)
        if y and (arm.loss, arm.setting) != tuple(rows.loc[y - 1, ["loss", "setting"]]):
            axis.axhline(y - 0.5, color="grey", linewidth=0.5)
    labels = [f"{short(arm, 60)}  (n={(runs.arm == arm).sum()})" for arm in rows.arm]
    axis.set_yticks(range(len(rows)), labels, fontsize=8)
    axis.set(ylim=(len(rows) - 0.4, -0.6), xlim=(-0.02, 1.02), xlabel="last held-out reward")
    return figure


def heat_maps(results: Results) -> Figure | str:
    """Collapsed runs and last reward of every arm: precision and correction x loss and setting."""
    table = results.combinations
    if table.empty:
        return "No run has ended."
    shares, last = {}, {}
    for found in table.to_dict("records"):
        place = found["down"], found["across"]
        never = " †" if found["never_learned"] else ""
        shares[place] = found["collapsed"] / found["known"], f"{found['collapsed']}/{found['known']}{never}"
        if pd.notna(found["mean"]):
            apart = f"\n{round(found['from_control'], 2) + 0.0:+.2f}" if pd.notna(found["from_control"]) else ""
            last[place] = found["mean"], f"{found['mean']:.2f}{apart}"
    rows, columns = list(table.down.unique()), list(table.across.unique())
    figure, axes = subplots(1, 2, height(len(rows)), sharey=True)
    heat(axes[0, 0], shares, rows, columns, "collapsed, of ended runs", True)
    heat(axes[0, 1], last, rows, columns, "last reward; below, its difference from the control", False)
    return figure


def reward_curves(results: Results) -> Figure | str:
    """Held-out reward of each seed, or of many their median, a panel per precision, loss and setting, over the control's."""
    if "eval/reward" not in results.steps:
        return "No run has recorded a held-out reward."
    evaluated = results.steps.dropna(subset=["eval/reward"])
    begun = results.runs[results.runs.index.isin(evaluated.run)]
    if begun.empty:
        return "No run has recorded a held-out reward."
    panels = [(key, part) for key, arms in _panels(begun, order(begun)) for part in chunks(arms)]
    figure, axes = grid(len(panels), 3, 2.4, sharex=True, sharey=True)
    by_run = {run: rows for run, rows in evaluated[["run", "step", "eval/reward"]].groupby("run", observed=True)}
    controls = begun[begun.control]
    names = dict.fromkeys(name for _, arms in panels for name in begun[begun.arm.isin(arms)].correction)
    places = {name: i % len(COLOURS) for i, name in enumerate(names)}
    for axis, (key, arms) in zip(axes, panels, strict=True):
        behind = controls[(controls.loss == key[1]) & (controls.setting == key[2]) & ~controls.arm.isin(arms)]
        for j, run in enumerate(behind.index[:10]):
            curve = thinned(by_run[run].step, by_run[run]["eval/reward"])
            axis.plot(*curve, linewidth=0.7, color="#BBBBBB", zorder=0, label="" if j else "control", gid=run)
        for arm in arms:
            runs = begun[begun.arm == arm]
            curves, name = [by_run[run] for run in runs.index], runs.correction.iloc[0]
            i, label = places[name], short(name)
            few = len(curves) <= survival.FEW
            for j, (run, curve) in enumerate(zip(runs.index[:10], curves, strict=False)):
                how = {**look(i), "label": "" if j else label} if few else {"color": COLOURS[i], "alpha": 0.18}
                axis.plot(*thinned(curve.step, curve["eval/reward"]), linewidth=0.7, gid=run, **how)
            if not few:
                pooled = pd.concat(curves).groupby("step")["eval/reward"].agg(["median", "size"])
                middle = pooled["median"][pooled["size"] == len(curves)]  # else it would jump where a run's record ends
                axis.plot(*thinned(middle.index, middle), **look(i), linewidth=1.4, label=label)
        axis.set_title(short(" ".join(key)))
        axis.set_ylim(-0.02, 1.02)
        axis.grid(alpha=0.2)
    label_outer(axes, "RL step", "held-out reward")
    legend_below(figure, axes)
    return figure


def thinned(x, y) -> tuple[np.ndarray, np.ndarray]:
    """At most CURVE_POINTS points of a curve, the last one among them."""
    keep = np.unique(np.linspace(0, len(x) - 1, min(len(x), CURVE_POINTS)).astype(int))
    return np.asarray(x)[keep], np.asarray(y)[keep]
