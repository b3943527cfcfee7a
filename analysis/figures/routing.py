"""The figure of routing: how much of the mismatch the choice of experts explains, and in which layers the choices differ."""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis.figures.style import COLOURS, MARKERS, grid, label_outer, short
from analysis.results import Results

PARTS = {"routing/k3_routing": "-", "routing/k3_rest": "--"}
"""The two parts of K3, and the dashes of their lines."""
FLIPS = "routing/flip_layer_"


def routing(results: Results) -> Figure | str:
    """K3's two parts over the steps, medians over seeds, and mean flips by layer; at most eight arms."""
    steps = results.steps
    layers = sorted((name for name in steps if name.startswith(FLIPS)), key=lambda name: int(name.removeprefix(FLIPS)))
    if not layers or not steps[layers].notna().any(axis=None):
        return "No run has recorded routing: it takes model=moe and diagnostics.every."
    steps = steps.dropna(subset=[layers[0]])
    arms = steps.run.astype(str).map(results.runs.arm)
    figure, (parts, flips) = grid(2, 2, 3.4)
    for place, arm in enumerate(sorted(arms.unique())[:8]):
        rows = steps[arms == arm]
        for name, dashes in PARTS.items():
            middle = rows.groupby("step")[name].median()
            label = short(arm) if name == "routing/k3_routing" else ""
            parts.plot(middle.index, middle, color=COLOURS[place], linestyle=dashes, label=label, linewidth=1.2)
        flips.plot(range(len(layers)), 100 * rows[layers].mean(), color=COLOURS[place], marker=MARKERS[place], linewidth=1)
    smallest = steps["routing/k3_rest"][steps["routing/k3_rest"] > 0]
    parts.set_yscale("symlog", linthresh=smallest.min() if len(smallest) else 1e-9)  # an exact 0 and a negative part are values
    parts.set_title("K3: routing (solid) and rest (dashed), nats per token")
    parts.set_xlabel("RL step")
    parts.legend(fontsize=7)
    flips.set_xticks(range(len(layers)))
    flips.set_title("Tokens with other experts than the engine's, %")
    label_outer([flips], "layer")
    return figure
