"""`python -m experiments.faults.mean_ratio RECORD OUT`: draw each dump of RECORD at its K3 and its mean ratio into the file OUT.

It shows the dumps without a fault, and those of the injected faults that move the mean ratio for certain.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from algos.faults.base import SURE
from analysis.figures.style import png, subplots
from analysis.marks import HUES, NEUTRAL
from experiments.faults.report import read

TITLE = "The mean ratio flags all 59 batches with one of two bugs, and none of 467 without."
BUGS = {
    "logged before temperature": (("raw_logprobs",), HUES["fp8_tensor"], "^"),
    "top-p or top-k, logged after the cut": (("top_p", "top_k"), HUES["bf16"], "v"),
}
"""Injected faults that move the mean ratio: what each is -> (its names in the record, colour, marker)."""
LANGUAGE = re.compile(r"smollm2|vllm$|vllm-(fp16|int8)|local-|long/")
"""Begin of a source whose dumps are of SmolLM2-135M. The others are of toy policies."""
NAMED = {"fp16": "FP16", "bf16": "BF16", "int8": "INT8", "fp8_tensor": "FP8", "nvfp4": "FP4", "nvfp4_w4a4": "W4A4"}
"""Formats of the sampler that are named below their dumps without a fault."""
LEAST = 5e-8
"""Dumps whose K3 is less, 0 mostly, stand here: in nats per token."""


def picture(frame: pd.DataFrame) -> Figure:
    """Draw the dumps, a panel per kind of model. frame: as `report.read` returns it, with k3 in nats per token."""
    language = frame["source"].str.match(LANGUAGE)
    figure, (axes,) = subplots(1, 2, 3.7, sharey=True, width_ratios=(6, 4))
    for axis, name, part in zip(axes, ("toy policies", "SmolLM2-135M"), (frame[~language], frame[language]), strict=True):
        sound = part[part["fault"] == "clean"].assign(k3=lambda dumps: dumps["k3"].clip(lower=LEAST))
        axis.set_xscale("log")
        axis.axhspan(-SURE, SURE, color=NEUTRAL, alpha=0.1, linewidth=0)
        axis.plot(sound["k3"], sound["z"], "o", color=NEUTRAL, markersize=3, alpha=0.5, markeredgewidth=0)
        _name_formats(axis, sound)
        shown = 0
        for label, (faults, colour, marker) in BUGS.items():
            bug = part[part["fault"].isin(list(faults))]
            axis.plot(bug["k3"], bug["z"], marker, color=colour, markersize=5, linestyle="", markeredgewidth=0)
            shown += len(bug)
            if axis is axes[0] and len(bug):
                style: dict[str, Any] = {"ha": "right", "va": "center", "color": colour, "fontsize": 10}
                _say(axis, label, bug["k3"].min(), max(bug["z"], key=abs), (-8, 0), **style)
        axis.set_title(f"{name}: {len(sound)} without a bug, {shown} with", fontsize=10)
        axis.set_xlabel("K3, nats per token")
    axes[0].set_ylabel("mean ratio − 1, in standard errors")
    figure.suptitle(TITLE, fontsize=12, x=0.01, ha="left")
    return figure


def _name_formats(axis: Axes, sound: pd.DataFrame) -> None:
    """Name the formats below the panel's dumps of one policy. Formats that lie within half a decade share a label."""
    own = sound[sound["source"].str.match(LANGUAGE) | (sound["source"] == "chain")]
    middles = own.groupby("precision")["k3"].median().rename(NAMED).reindex(list(NAMED.values())).dropna().sort_values()
    for _, near in middles.groupby(np.log10(middles).diff().gt(0.5).cumsum()):
        _say(axis, ", ".join(near.index), near.median(), -SURE, (0, -11), ha="center", color=NEUTRAL)


def _say(axis: Axes, text: str, x: float, y: float, away: tuple[int, int], **style: Any) -> None:
    """Write the text at a point of the panel. away: its distance from there, in points."""
    axis.annotate(text, (x, y), away, textcoords="offset points", **style)


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes(png(picture(read(Path(sys.argv[1]))), dpi=130))
