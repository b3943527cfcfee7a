"""The figure of the map of sources of mismatch: size, and cost for either deployed policy (docs/sources.png)."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from analysis.figures.style import png, subplots
from analysis.marks import HUES, NEUTRAL
from experiments.verdict_study import EARLY

NAMES = {
    "salted_parts": "KV of parts kept, salted",
    "kept_parts": "KV of parts kept",
    "kept_prompts": "KV of prompts kept",
    "fp8_cache": "FP8 cache, scale 1",
    "fp8_cache_stale": "FP8 cache, stale scales",
    "fp8_cache_p99": "FP8 cache, 99th percentile",
    "bf16_masters": "BF16 trainer, FP32 masters",
    "no_masters": "BF16 trainer, no masters",
    "kahan": "BF16 trainer, Kahan sums",
    "stochastic": "BF16 trainer, stochastic rounding",
    "mxfp4": "MXFP4 weights",
    "int4": "INT4 weights",
    "nvfp4": "NVFP4 weights",
    "four_over_six": "W4A4, 4 over 6",
    "w4a4": "W4A4",
    "w4a4_last": "W4A4, last layer BF16",
    "w4a4_bf16": "W4A4, BF16 trainer",
    "unified_w4a4": "W4A4, W4A4 trainer",
    "wrong_draft": "wrong draft",
    "partial": "partial rollouts",
    "stale_2": "FP8 weights, two steps old",
    "fp8_tensor": "FP8 weights",
    "fixed_0.2": "fixed noise 0.2",
    "fresh_0.2": "fresh noise 0.2",
}
"""Name of a source, an option of regime/source, -> its words in the figure."""
LEAST = 1e-8
"""K3 in nats per token at the left edge of the figure. A smaller one is drawn there."""
MARKS = {"dense": "o", "moe": "^"}
TITLES = {"trainer": "cost, trainer's policy served", "sampler": "cost, engine's policy served"}


def finding(table: pd.DataFrame, costs: pd.DataFrame, gain: float) -> str:
    """Title of the figure: the source that costs the trainer's policy most by the adjusted test, and its mean early K3."""
    told = costs[(costs.policy == "trainer") & (costs.holm_p <= 0.05) & (costs.difference < 0)]
    if told.empty:
        return f"No source of {costs.arm.nunique()} is shown to cost the trainer's policy reward"
    most = told.loc[told.difference.idxmin()]
    k3 = table[table.source == most.arm].k3.mean()
    cost = -most.difference / gain
    return f"{NAMES[most.arm]}: a cost of {cost:.0%} of what RL teaches, at a K3 of {k3:.0e} in the first {EARLY} steps"


def draw(table: pd.DataFrame, costs: pd.DataFrame, gain: float, file: Path) -> str:
    """Draw a row per source into `file`: its K3, and its cost with a 95 % interval over pairs of runs. Returns the title.

    table: as `sources.mapped` returns it. costs: the comparisons with the exact control. gain: what RL teaches the control, by
    which the costs are divided. Filled marks differ from the control by the adjusted test.
    """
    order = table.groupby("source").k3.mean().sort_values().index.to_list()
    figure, (axes,) = subplots(1, 3, 1.3 + 0.22 * len(order), sharey=True)
    for bed, mark in MARKS.items():
        own = table[table.bed == bed].set_index("source").k3.reindex(order).clip(lower=LEAST)
        axes[0].plot(own.to_numpy(), range(len(order)), mark, color=HUES["bf16"], markersize=5, label=bed)
    axes[0].set_xscale("log")
    axes[0].set_title(f"K3 of the first {EARLY} steps", fontsize=9)
    axes[0].legend(fontsize=7, frameon=False, loc="lower left")
    for axis, (policy, title) in zip(axes[1:], TITLES.items(), strict=True):
        _costs(axis, costs[costs.policy == policy].set_index("arm").reindex(order), gain)
        axis.set_title(title, fontsize=9)
    axes[0].set_yticks(range(len(order)), [NAMES[name] for name in order], fontsize=8)
    axes[0].invert_yaxis()
    title = finding(table, costs, gain)
    how = "shares of what RL teaches; ten pairs of runs; filled: told apart from no mismatch"
    figure.suptitle(f"{title}\n({how})", fontsize=10)
    file.write_bytes(png(figure, dpi=130))
    return title


def _costs(axis: Axes, rows: pd.DataFrame, gain: float) -> None:
    for place, row in enumerate(rows.itertuples()):
        cost, low, high = (-value / gain for value in (row.difference, row.high, row.low))
        filled = row.holm_p <= 0.05
        axis.plot([low, high], [place, place], color=NEUTRAL, linewidth=1)
        axis.plot(cost, place, "o", color=HUES["fp8_tensor"], markersize=5, fillstyle="full" if filled else "none")
    axis.axvline(0, color=NEUTRAL, linewidth=0.8, zorder=0)
    axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
