"""Figures of the replay page: ESS and tokens kept by each known correction, and mean of π_old/μ by token position."""

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
from faultline.tools.replay.terminal import row_label
from faultline.tools.replay.verdict import PresetEffect

BAR = 0.2
"""Height in inches of a bar of the figure of corrections, and of the number on it."""
INSIDE = 0.15
"""ESS, as a share, above which its number is drawn within the bar instead of beside it."""

EXAMPLE_COLOURS = {EXAMPLES["fp8"]: HUES["fp8_tensor"], EXAMPLES["bf16"]: HUES["bf16"]}
"""Colours of the sound example dumps in figures; other dumps are black."""


def presets_figure(dumps: dict[str, list[PresetEffect]], groups: list[list[str]]) -> Figure:
    """Draw a row of bars per correction, one per dump. dumps: label -> effects of corrections; the first gives the order.

    groups: lists of presets with equal settings, which share a row. The full bar is the ESS, which the number repeats. The pale
    bar behind it is the share of tokens kept. Bars of no correction are empty: they keep the mismatch, so 100 % is no merit.
    """
    leader = {name: names[0] for names in groups for name in names}
    rows: dict[str, list[PresetEffect]] = {}
    for preset in next(iter(dumps.values())):
        rows.setdefault(leader[preset.preset], []).append(preset)
    first = [mine[0] for mine in rows.values()]
    figure, ((axis,),) = subplots(1, 1, 1.1 + BAR * len(first) * (len(dumps) + 0.5))
    height = 0.8 / len(dumps)
    for i, (name, presets) in enumerate(dumps.items()):
        by_name = {preset.preset: preset for preset in presets}
        shown = [(place, by_name[preset.preset]) for place, preset in enumerate(first) if preset.preset in by_name]
        places = [place - 0.4 + (i + 0.5) * height for place, _ in shown]
        colour = EXAMPLE_COLOURS.get(name, CONTROL)
        axis.barh(places, [preset.tokens_kept for _, preset in shown], 0.9 * height, color=colour, alpha=0.25)
        bars = axis.barh(places, [preset.ess for _, preset in shown], 0.9 * height, color=colour, label=literal(name))
        for bar, place, (_, preset) in zip(bars, places, shown, strict=True):
            if preset.preset == "none":
                bar.set(facecolor="white", edgecolor=colour)
            within = preset.ess > INSIDE
            inner = "black" if preset.preset == "none" else ink(colour)
            x, hue = (preset.ess - 0.008, inner) if within else (max(preset.tokens_kept, preset.ess) + 0.008, "black")
            side = "right" if within else "left"
            axis.text(x, place, f"{preset.ess:.0%}", va="center", ha=side, color=hue, fontsize=8, fontweight="bold")
    axis.set_title("What each correction leaves of the batch", fontsize=11)
    _finish(axis, ["\n".join(map(row_label, mine)) for mine in rows.values()])
    handles, labels = axis.get_legend_handles_labels()
    handles.append(Patch(color=NEUTRAL, alpha=0.4))
    figure.legend(
        handles,
        [*labels, "pale: kept, but unevenly weighted"],
        loc="outside upper center",
        ncols=min(len(handles), 3),  # more would pass the edges
        frameon=False,
    )
    return figure


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


def _finish(axis: Axes, labels: list[str]) -> None:
    axis.set_yticks(range(len(labels)), [literal(label) for label in labels])
    axis.set_xlim(0, 1.01)
    axis.set_ylim(len(labels) - 0.45, -0.55)
    axis.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    axis.set_xlabel("effective sample size after the correction (100 %: nothing dropped, all weighted alike)")
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x", alpha=0.25)
    axis.set_axisbelow(True)
