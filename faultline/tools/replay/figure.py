"""Figures of the replay page: ESS, tokens kept and agreement of each known correction, and mean of π_old/μ by token position."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from algos.diagnostics.pairs import Mean
from analysis.colours import ink
from analysis.figures.style import literal, subplots
from analysis.marks import CONTROL, HUES, NEUTRAL
from faultline.tools.replay.example import EXAMPLES
from faultline.tools.replay.verdict import PresetEffect

BAR = 0.2
"""Height in inches of a bar of the figure of corrections, and of the number on it."""
INSIDE = 0.15
"""Share above which its number is drawn within the bar instead of beside it."""

EXAMPLE_COLOURS = {EXAMPLES["fp8"]: HUES["fp8_tensor"], EXAMPLES["bf16"]: HUES["bf16"]}
"""Colours of the sound example dumps in figures; other dumps are black."""


def presets_figure(dumps: dict[str, list[PresetEffect]], groups: list[list[str]]) -> Figure:
    """Draw a row per correction, of a bar per dump in two panels. dumps: label -> effects; the first gives the order.

    groups: lists of presets with equal settings, which share a row. Left, the full bar is the ESS, and the pale bar behind it the
    share of tokens kept. Right, the bar is the agreement with the exact sequence weight, and the line that without a correction.
    Numbers repeat the full bars. Bars of no correction are empty: it drops nothing, so its ESS of 100 % is no merit.
    """
    leader = {name: names[0] for names in groups for name in names}
    rows: dict[str, list[PresetEffect]] = {}
    for preset in next(iter(dumps.values())):
        rows.setdefault(leader[preset.preset], []).append(preset)
    first = [mine[0] for mine in rows.values()]
    figure, (axes,) = subplots(1, 2, 1.3 + BAR * len(first) * (len(dumps) + 0.5), sharey=True, width_ratios=(3, 2))
    height = 0.8 / len(dumps)
    handles: list[Patch] = []
    for i, (name, presets) in enumerate(dumps.items()):
        by_name = {preset.preset: preset for preset in presets}
        shown = [(place, by_name[preset.preset]) for place, preset in enumerate(first) if preset.preset in by_name]
        places = [place - 0.4 + (i + 0.5) * height for place, _ in shown]
        colour = EXAMPLE_COLOURS.get(name, CONTROL)
        axes[0].barh(places, [preset.tokens_kept for _, preset in shown], 0.9 * height, color=colour, alpha=0.25)
        if "none" in by_name:
            axes[1].axvline(by_name["none"].agreement, color=colour, linewidth=1, linestyle=":")
        for axis, share, beside in ((axes[0], "ess", "tokens_kept"), (axes[1], "agreement", "agreement")):
            for place, (_, preset) in zip(places, shown, strict=True):
                _bar(axis, place, 0.9 * height, getattr(preset, share), getattr(preset, beside), colour, preset.preset == "none")
        handles.append(Patch(facecolor=colour, label=literal(name)))
    axes[0].set_title("How much of the batch counts", fontsize=11)
    axes[0].set_xlabel("effective sample size (ESS)")
    axes[1].set_title("How near its weights are to exact", fontsize=11)
    axes[1].set_xlabel("agreement with whole responses' ratios\n(dotted: without a correction)")
    axes[0].set_yticks(range(len(rows)), [literal("\n".join(preset.label for preset in mine)) for mine in rows.values()])
    axes[0].set_ylim(len(rows) - 0.45, -0.55)
    for axis in axes:
        _finish(axis)
    handles.append(Patch(color=NEUTRAL, alpha=0.4, label="pale: kept, but unevenly weighted"))
    figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=min(len(handles), 3),  # more would pass the edges
        frameon=False,
    )
    return figure


def _bar(axis: Axes, place: float, height: float, share: float, taken: float, colour: str, empty: bool) -> None:
    """Draw a bar of `share`, with its number within, or beside the bar and the share `taken`. empty: do not fill it."""
    (bar,) = axis.barh(place, share, height, color=colour)
    if empty:
        bar.set(facecolor="white", edgecolor=colour)
    within = share > INSIDE
    inner = "black" if empty else ink(colour)
    x, hue = (share - 0.008, inner) if within else (max(taken, share) + 0.008, "black")
    side = "right" if within else "left"
    axis.text(x, place, f"{share:.0%}", va="center", ha=side, color=hue, fontsize=8, fontweight="bold")


def ratio_figure(by_place: list[Mean]) -> Figure:
    """Draw the mean of π_old/μ with two standard errors in each bin of token positions; bin b ends at token 2ᵇ."""
    figure, ((axis,),) = subplots(1, 1, 2.6)
    means = [(2**i, mean) for i, mean in enumerate(by_place) if math.isfinite(mean.mean)]
    errors = [2 * mean.error if math.isfinite(mean.error) else 0.0 for _, mean in means]
    axis.axhline(1.0, color=NEUTRAL, linewidth=1)
    axis.errorbar([place for place, _ in means], [mean.mean for _, mean in means], errors, fmt="o-", color=CONTROL, capsize=3)
    axis.set_xscale("log", base=2)
    axis.set_xticks([place for place, _ in means], [f"{place:,}" for place, _ in means])
    axis.minorticks_off()
    axis.set_xlabel("token in the response, last of its bin")
    axis.set_ylabel("mean ratio")
    axis.grid(alpha=0.25)
    return figure


def _finish(axis: Axes) -> None:
    axis.set_xlim(0, 1.01)
    axis.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x", alpha=0.25)
    axis.set_axisbelow(True)
