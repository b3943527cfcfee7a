"""Figures of the mismatch: its size, its cost, and the metrics around a collapse."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from analysis.figures.outcome import enough, part_of, thinned, too_few
from analysis.figures.style import FigureOrReason, Handle, chunks, grid, key, label_outer, legend_below, literal, short, subplots
from analysis.labels import coarseness, metric
from analysis.marks import NEUTRAL, SOLID, Mark
from analysis.results import Results
from analysis.statistics.measures import per_row
from analysis.statistics.survival import FEW

EARLY = (5, 25)
"""First and last RL step of the range whose median K3 is a run's early mismatch."""
AROUND = (-60, 20)
"""First and last RL step, counted from the onset of a collapse, in the figure of the metrics around it."""
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
"""Metrics in the figure of collapsed runs whose traces are aligned at the onset of the collapse."""
LOG = ("rollout_corr/k3_kl", "actor/grad_norm", "mismatch/log_ratio_max_abs")


def dose_response(results: Results) -> FigureOrReason:
    """The figure of each run's time to collapse against its early K3. Runs without a collapse are open markers at their end."""
    if not enough(results):
        return too_few(results)
    if "rollout_corr/k3_kl" not in results.steps:
        return "no run has recorded K3"
    first, last = EARLY
    steps = results.steps.loc[results.steps.step.between(first, last), ["run", "rollout_corr/k3_kl"]]
    early = steps.groupby("run", observed=True)["rollout_corr/k3_kl"].median()
    runs = results.runs.assign(early=early.reindex(results.runs.index)).dropna(subset=["early"])
    if runs.empty:
        return f"no run has recorded K3 between steps {first} and {last}"
    figure, ((axis,),) = subplots(1, 1, 4.2)
    floor = runs.early[runs.early > 0].min() / 3 if (runs.early > 0).any() else 1e-9
    for arm, mine in runs.groupby("arm"):
        _scatter(axis, mine.early.clip(lower=floor), mine.time, mine.event, results.marks.arms[str(arm)])
    axis.set_xscale("log")
    axis.set_ylim(bottom=0)
    left = "; the exact control, 0, stands at the left end" if runs.control.any() else ""
    axis.set_xlabel(f"K3, median of steps {first} to {last} (nats per token){left}")
    axis.set_ylabel("optimizer steps until collapse\n(open: none until the record ends)")
    legend_below(figure, [], _named(results, _sources(runs), runs.correction))
    return figure


def _scatter(axis: Axes, x: pd.Series, y: pd.Series, event: pd.Series, mark: Mark) -> None:
    """Draw a point per run, filled if the run collapsed. x, y, event: values by run."""
    event = event.reindex(x.index).astype(bool)
    for fell, face in ((True, mark.colour), (False, "none")):
        if len(chosen := event.index[event == fell]):
            axis.scatter(x[chosen], y[chosen], marker=mark.marker, edgecolors=mark.colour, facecolors=face, s=30)


def _named(results: Results, sources: list[str], corrections: pd.Series) -> dict[str, Handle]:
    """Legend entries of a scatter plot: the colour of each source of mismatch (such as `fp8`), the marker of each correction."""
    legend: dict[str, Handle] = {literal(source): key(results.marks.source(source), line=False) for source in sources}
    markers = results.marks.corrections
    for name in sorted(set(corrections), key=list(markers).index):
        label = "no correction" if name == "none" else short(name)
        legend[label] = tuple(key(Mark(NEUTRAL, marker, SOLID), line=False, markerfacecolor="none") for marker in markers[name])
    return legend


def _sources(runs: pd.DataFrame) -> list[str]:
    """The causes of mismatch in `runs`, such as `fp8` or `bf16, noise 0.01`, from fine to coarse rollout precision."""
    sources = runs.drop_duplicates("source")
    sources = sources.assign(coarseness=sources.precision.map(coarseness))
    return list(sources.sort_values(["coarseness", "precision", "source"]).source)


def aligned_traces(results: Results) -> FigureOrReason:
    """The figure of collapsed runs' diagnostics around the onset of the collapse, or why there are too few collapses for it."""
    if not enough(results):
        return too_few(results)
    collapsed = results.runs[results.runs.event]
    known = ["run", "step", *(name for name in TRACES if name in results.steps)]
    steps = results.steps.loc[results.steps.run.isin(collapsed.index), known]
    at = steps.step - per_row(steps, collapsed.onset)
    steps = steps.assign(at=at, source=per_row(steps, collapsed.source))[at.between(*AROUND)]
    traces = [name for name in TRACES if name in steps and steps[name].nunique() > 1]
    parts = chunks(_sources(collapsed))
    shown = [(part, name, part_of(i, parts)) for i, part in enumerate(parts) for name in traces]
    figure, axes = grid(len(shown), 3, 2.2, sharex=True)
    for axis, (part, name, number_of) in zip(axes, shown, strict=True):
        for source in part:
            rows = steps[steps.source == source].dropna(subset=[name])
            _aligned(axis, rows, name, int((collapsed.source == source).sum()), results.marks.source(source))
        axis.axvline(0, color=NEUTRAL, linewidth=0.8, linestyle=":")
        axis.set_title(metric(name, unit=True) + number_of)
        if name in LOG and not (steps[name] <= 0).any():
            axis.set_yscale("log")
        elif name in LOG and (steps[name] > 0).any():  # linear below the least positive value, to show an exact 0
            axis.set_yscale("symlog", linthresh=steps[name][steps[name] > 0].min())
            axis.set_ylim(bottom=0)
    label_outer(axes, "steps after the onset")
    number = collapsed.groupby("source").size()
    named = {source: f"{source} ({number[source]} run{'s' if number[source] > 1 else ''})" for source in _sources(collapsed)}
    legend_below(figure, [], {literal(label): key(results.marks.source(source)) for source, label in named.items()})
    return figure


def _aligned(axis: Axes, rows: pd.DataFrame, name: str, number: int, mark: Mark) -> None:
    """Draw metric `name` of `number` collapsed runs over the steps from their collapse: each if at most 5, else quartiles."""
    if rows.empty:
        return
    if number <= FEW:
        for _, one in rows.groupby("run", observed=True):
            axis.plot(one["at"], one[name], **mark.line, linewidth=0.8)
        return
    grouped = rows.groupby(rows["at"] // 2 * 2)[name]  # pairs of steps, since runs evaluate at different steps
    middle, low, high = grouped.median(), grouped.quantile(0.25), grouped.quantile(0.75)
    axis.plot(middle.index, middle, **mark.line, linewidth=1.3)
    axis.fill_between(middle.index, low, high, color=mark.colour, alpha=0.15, linewidth=0)


def deployment_gap(results: Results) -> FigureOrReason:
    """The figure of what a mismatch or its correction costs: reward of the sampling policy, unused tokens, response length.

    The first panels show the rollout policy's reward minus the trainer's at the same step. The next shows the last reward of
    ended runs against the share of tokens that the correction used. The last shows the lengths of dropped and used responses.
    """
    if not {"eval/reward", "reward/rollout"} <= set(results.steps.columns):
        return "the runs have not recorded both rewards"
    both = results.steps[["run", "step", "eval/reward", "reward/rollout"]].dropna()
    if both.empty:
        return "the runs have not recorded both rewards at one step"
    both = both.assign(gap=both["reward/rollout"] - both["eval/reward"], source=per_row(both, results.runs.source))
    kept, zero = "correction/kept_tokens", "correction/weight_zero"
    corrected = list(results.ended.index[results.ended.correction != "none"])
    rejecting = corrected if {kept, zero} <= set(results.steps.columns) else []
    lengths = _lengths(results, rejecting)
    sources = [source for source in _sources(results.runs) if (both.source == source).any()]
    parts = chunks(sources)
    figure, axes = grid(len(parts) + bool(rejecting) + (not lengths.empty), 3, 3.4)
    gaps, rest = axes[: len(parts)], axes[len(parts) :]
    for i, (axis, part) in enumerate(zip(gaps, parts, strict=True)):
        for source in part:
            middle = both[both.source == source].groupby("step").gap.median()
            axis.plot(*thinned(middle.index, middle.rolling(5, min_periods=1).mean()), **results.marks.source(source).line)
        axis.axhline(0, color=NEUTRAL, linewidth=0.8)
        axis.set(xlabel="RL step", ylabel="difference", title="Rollout minus held-out reward" + part_of(i, parts))
    if rejecting:
        steps = results.steps.loc[results.steps.run.isin(rejecting), ["run", kept, zero]]
        # Dropped tokens and tokens of weight 0 may overlap, so for a correction with both this is an upper bound.
        used = steps[kept].clip(upper=1 - steps[zero]).groupby(steps.run, observed=True).mean()
        for arm, runs in results.runs.loc[rejecting].groupby("arm"):
            final = results.rewards.final[runs.index]
            _scatter(rest[0], used.reindex(runs.index), final, runs.event, results.marks.arms[str(arm)])
        rest[0].set(xlabel="share of tokens used", ylabel="last held-out reward")
        rest[0].set_title("Tokens used and last reward")
    if not lengths.empty:
        for arm, runs in lengths.groupby("arm"):
            _scatter(rest[-1], runs.used, runs.dropped, results.runs.event[runs.index], results.marks.arms[str(arm)])
        ends = [lengths[["used", "dropped"]].min().min(), lengths[["used", "dropped"]].max().max()]
        rest[-1].plot(ends, ends, color=NEUTRAL, linewidth=0.8)
        rest[-1].set(xlabel="mean length, used (tokens)", ylabel="mean length, dropped (tokens)")
        rest[-1].set_title("Length of dropped responses")
    lines: dict[str, Handle] = {literal(source): key(results.marks.source(source)) for source in sources}
    points = _named(results, [], results.runs.correction[rejecting]) if rejecting else {}
    legend_below(figure, [], lines | points)
    return figure


def _lengths(results: Results, rejecting: list[str]) -> pd.DataFrame:
    """A row per run in `rejecting`: mean lengths of its used and dropped responses, over the steps that dropped some."""
    names = ["correction/used_length", "correction/dropped_length"]
    steps = results.steps.reindex(columns=["run", *names]).dropna()
    steps = steps[steps.run.isin(rejecting)]
    steps = steps if steps[names].stack().nunique() > 1 else steps[:0]
    lengths = steps.groupby("run", observed=True)[names].mean().set_axis(["used", "dropped"], axis=1)
    return lengths.set_axis(lengths.index.astype(str)).join(results.runs.arm)
