"""Figures of the mismatch: how much there is, what it costs, and what happens around a collapse."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from analysis.figures.outcome import thinned
from analysis.figures.style import COLOURS, MARKERS, grid, label_outer, look, short, subplots
from analysis.labels import coarseness, metric
from analysis.results import Results
from analysis.statistics.survival import FEW

EARLY = (5, 25)
"""Steps whose median K3 is a run's early mismatch."""
AROUND = (-60, 20)
"""Steps about the onset of a collapse that the aligned traces show."""
TRACES = (
    "eval/reward",
    "rollout_corr/k3_kl",
    "mismatch/ess_sequence",
    "mismatch/log_ratio_max_abs",
    "rollout_corr/training_ppl",
    "actor/grad_norm",
    "actor/entropy",
    "correction/weight_zero",
    "correction/kept_sequences",
    "rollout/response_tokens",
)
"""Metrics that the aligned traces show."""
LOG = ("rollout_corr/k3_kl", "actor/grad_norm", "mismatch/log_ratio_max_abs")


def dose_response(results: Results) -> Figure | str:
    """Time to collapse against early K3; runs that did not collapse stand at the end of their record, open."""
    if "rollout_corr/k3_kl" not in results.steps:
        return "No run has recorded K3."
    first, last = EARLY
    early = results.steps[results.steps.step.between(first, last)].groupby("run", observed=True)["rollout_corr/k3_kl"].median()
    runs = results.runs.assign(early=early.reindex(results.runs.index)).dropna(subset=["early"])
    if runs.empty:
        return f"No run has recorded K3 between steps {first} and {last}."
    figure, ((axis,),) = subplots(1, 1, 4.2)
    floor = runs.early[runs.early > 0].min() / 3 if (runs.early > 0).any() else 1e-9
    for i, source in enumerate(_sources(runs)):
        mine = runs[runs.source == source]
        x = mine.early.clip(lower=floor)
        options = {"marker": MARKERS[i % 8], "color": COLOURS[i % 8], "s": 34}
        axis.scatter(x[mine.event], mine.time[mine.event], **options)
        axis.scatter([], [], label=source, **options)
        options |= {"facecolors": "none", "edgecolors": options.pop("color")}
        axis.scatter(x[~mine.event], mine.time[~mine.event], **options)
    axis.set_xscale("log")
    axis.set_ylim(bottom=0)
    axis.set_xlabel(f"K3, median of steps {first} to {last} (nats per token); the exact control, 0, stands at the left end")
    axis.set_ylabel("optimizer steps until collapse\n(open: none until the record ends)")
    axis.legend(title="rollout")
    return figure


def _sources(runs: pd.DataFrame) -> list[str]:
    """The sources of mismatch, from fine to coarse precision."""
    sources = runs.drop_duplicates("source")
    sources = sources.assign(coarseness=sources.precision.map(coarseness))
    return list(sources.sort_values(["coarseness", "precision", "source"]).source)


def aligned_traces(results: Results) -> Figure | str:
    """Diagnostics of the collapsed runs, aligned at the onset: median and middle half per source of mismatch."""
    collapsed = results.runs[results.runs.event]
    if collapsed.empty:
        return "No run collapsed, so there is nothing to align."
    steps = results.steps[results.steps.run.isin(collapsed.index)]
    at = steps.step - steps.run.astype(str).map(collapsed.onset)
    steps = steps.assign(at=at, source=steps.run.astype(str).map(collapsed.source))[at.between(*AROUND)]
    shown = [name for name in TRACES if name in steps and steps[name].nunique() > 1]
    figure, axes = grid(len(shown), 3, 2.2, sharex=True)
    for axis, name in zip(axes, shown, strict=True):
        for i, source in enumerate(_sources(collapsed)):
            rows = steps[steps.source == source].dropna(subset=[name])
            if rows.empty:
                continue
            number = (collapsed.source == source).sum()
            label = f"{source} ({number} run{'s' if number > 1 else ''})"
            if number <= FEW:
                for j, (_, one) in enumerate(rows.groupby("run", observed=True)):
                    axis.plot(one["at"], one[name], **look(i % 8), label="" if j else label, linewidth=0.8)
                continue
            grouped = rows.groupby(rows["at"] // 2 * 2)[name]  # pairs of steps: evaluations of runs fall on different ones
            middle, low, high = grouped.median(), grouped.quantile(0.25), grouped.quantile(0.75)
            axis.plot(middle.index, middle, **look(i % 8), label=label, linewidth=1.3)
            axis.fill_between(middle.index, low, high, color=COLOURS[i % 8], alpha=0.15, linewidth=0)
        axis.axvline(0, color="grey", linewidth=0.8, linestyle=":")
        axis.set_title(metric(name, unit=True))
        if name in LOG and not (steps[name] <= 0).any():
            axis.set_yscale("log")
        elif name in LOG and (steps[name] > 0).any():  # linear below the least value: an exact 0 is a value too
            axis.set_yscale("symlog", linthresh=steps[name][steps[name] > 0].min())
            axis.set_ylim(bottom=0)
    axes[0].legend(fontsize=7)
    label_outer(axes, "steps after the onset")
    return figure


def deployment_gap(results: Results) -> Figure | str:
    """Reward of the rollout policy less the trainer's own at the same step; last reward against the share of tokens that the
    correction left; length of the responses that it dropped."""
    if not {"eval/reward", "reward/rollout"} <= set(results.steps.columns):
        return "The runs have not recorded both rewards."
    both = results.steps.dropna(subset=["eval/reward", "reward/rollout"])
    if both.empty:
        return "The runs have not recorded both rewards at one step."
    both = both.assign(gap=both["reward/rollout"] - both["eval/reward"], source=both.run.astype(str).map(results.runs.source))
    kept, zero = "correction/kept_tokens", "correction/weight_zero"
    rejecting = list(results.runs.index[results.runs.correction != "none"]) if {kept, zero} <= set(results.steps.columns) else []
    lengths = _lengths(results, rejecting)
    figure, axes = grid(1 + bool(rejecting) + (not lengths.empty), 3, 3.4)
    for i, source in enumerate(_sources(results.runs)):
        rows = both[both.source == source]
        middle = rows.groupby("step").gap.median()
        if len(middle):
            x, y = thinned(middle.index, middle.rolling(5, min_periods=1).mean())
            axes[0].plot(x, y, **look(i % 8), label=source)
    axes[0].axhline(0, color="grey", linewidth=0.8)
    axes[0].set(xlabel="RL step", ylabel="rollout reward − held-out reward")
    axes[0].set_title("Rollout reward minus held-out reward")
    axes[0].legend()
    if rejecting:
        steps = results.steps[results.steps.run.isin(rejecting)]
        # What a filter drops and what has weight 0 may overlap: of a correction with both this is the most that can be left.
        used = steps[kept].clip(upper=1 - steps[zero]).groupby(steps.run, observed=True).mean()
        for i, (label, runs) in enumerate(list(results.runs.loc[rejecting].groupby("correction"))[:8]):
            options: dict[str, Any] = {"marker": MARKERS[i], "color": COLOURS[i], "label": short(label)}
            axes[1].scatter(used.reindex(runs.index), results.rewards.final[runs.index], **options)
        axes[1].legend(fontsize=7)
        axes[1].set(xlabel="share of tokens kept at a weight above 0, mean", ylabel="last held-out reward")
        axes[1].set_title("Tokens used and last reward")
    for i, (label, runs) in enumerate(list(lengths.groupby("correction"))[:8]):
        axes[2].scatter(runs.used, runs.dropped, marker=MARKERS[i], color=COLOURS[i], label=short(label))
    if not lengths.empty:
        ends = [lengths[["used", "dropped"]].min().min(), lengths[["used", "dropped"]].max().max()]
        axes[2].plot(ends, ends, color="grey", linewidth=0.8)
        axes[2].legend(fontsize=7)
        axes[2].set(xlabel="mean length of used responses (tokens)", ylabel="mean length of dropped responses")
        axes[2].set_title("Length of dropped responses")
    return figure


def _lengths(results: Results, rejecting: list[str]) -> pd.DataFrame:
    """Per run the mean length of the responses that its correction dropped, and of those it used, at the steps where it dropped
    some; empty where no run did, or where all responses are of one length."""
    names = ["correction/used_length", "correction/dropped_length"]
    steps = results.steps[results.steps.run.isin(rejecting)].reindex(columns=["run", *names]).dropna()
    steps = steps if steps[names].stack().nunique() > 1 else steps[:0]
    found = steps.groupby("run", observed=True)[names].mean().set_axis(["used", "dropped"], axis=1)
    return found.join(results.runs.correction)
