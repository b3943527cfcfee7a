"""The figure of routing: the share of the mismatch due to the choice of experts, and the differing choices by layer."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from analysis.figures.outcome import part_of, sparse
from analysis.figures.style import FigureOrReason, chunks, key, legend_below, short, subplots
from analysis.marks import Mark
from analysis.results import Results
from analysis.statistics.measures import per_row

PARTS = {"routing/k3_routing": "-", "routing/k3_rest": "--"}
"""Dash of the line of each part of K3 (due to the choice of experts, and the rest), by the part's metric."""
FLIPS = "routing/flip_layer_"


def routing(results: Results) -> FigureOrReason:
    """The figure of K3's two parts (routing, rest) over steps, and of differing expert choices by layer; at most 8 lines each."""
    steps = results.steps
    layers = sorted((name for name in steps if name.startswith(FLIPS)), key=lambda name: int(name.removeprefix(FLIPS)))
    if not layers or not steps[layers].notna().any(axis=None):
        return "no run has recorded routing: it takes model=moe and diagnostics.every"
    steps = steps.dropna(subset=[layers[0]])
    arms = per_row(steps, results.runs.arm)
    shown = [arm for arm in results.arms if (arms == arm).any()]
    rows = chunks(shown)
    figure, axes = subplots(len(rows), 2, 3.2 * len(rows) + 0.3)
    smallest = steps["routing/k3_rest"][steps["routing/k3_rest"] > 0]
    for i, ((parts, flips), row) in enumerate(zip(axes, rows, strict=True)):
        for arm in row:
            _arm(parts, flips, steps[arms == arm], layers, results.marks.arms[arm])
        # An exact 0 and a negative part must be shown.
        parts.set_yscale("symlog", linthresh=smallest.min() if len(smallest) else 1e-9)
        parts.set_title("K3: routing (solid) and rest (dashed), nats per token" + part_of(i, rows))
        parts.set_xlabel("RL step")
        flips.set_xticks(range(len(layers)))
        flips.set_title("Tokens with other experts than the engine's, %" + part_of(i, rows))
        flips.set_xlabel("layer")
    legend_below(figure, [], {short(arm): key(results.marks.arms[arm], line=False) for arm in shown})
    return figure


def _arm(parts: Axes, flips: Axes, rows: pd.DataFrame, layers: list[str], mark: Mark) -> None:
    options: dict[str, Any] = {"color": mark.colour, "marker": mark.marker, "markersize": 4}
    for name, dash in PARTS.items():
        middle = rows.groupby("step")[name].median()
        parts.plot(middle.index, middle, linestyle=dash, linewidth=1.2, markevery=sparse(middle), **options)
    flips.plot(range(len(layers)), 100 * rows[layers].mean(), linewidth=1, **options)
