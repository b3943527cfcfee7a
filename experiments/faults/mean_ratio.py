"""`python -m experiments.faults.mean_ratio RECORD OUT`: draw each dump of RECORD at its K3 and its mean ratio into the file OUT.

It shows the dumps without a fault, and those whose fault moves the mean ratio. The mean ratio stands in its standard errors.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from algos.faults.base import SURE
from analysis.figures.style import png, subplots
from analysis.marks import HUES, NEUTRAL
from experiments.faults.report import read

TITLE = "K3 does not tell a bug from FP8. The mean ratio does."
BUGS = {
    "bug: logged before temperature": (("raw_logprobs",), HUES["fp8_tensor"], "^"),
    "bug: top-p or top-k cut tokens off": (("top_p", "top_k"), HUES["bf16"], "v"),
}
"""Injected faults that move the mean ratio: what each is -> (its names in the record, colour, marker)."""
FORMATS = {"fp16": "FP16", "bf16": "BF16", "int8": "INT8", "fp8_tensor": "FP8", "nvfp4": "FP4"}
"""Sampler's formats that are named below the dumps of the toy policy."""
LANGUAGE = 0.02
"""Minimum K3 in nats per token that only the quantised dumps of SmolLM2 have among those without a fault."""
LEAST = 5e-8
"""Dumps whose K3 is less, 0 mostly, stand here: in nats per token."""


def picture(frame: pd.DataFrame) -> Figure:
    """Draw the dumps. frame: as `experiments.faults.report.read` returns it, with k3 in nats per token."""
    figure, ((axis,),) = subplots(1, 1, 3.7)

    def say(text: str, x: float, y: float, right: float, up: float, **style) -> None:
        axis.annotate(text, (x, y), (right, up), textcoords="offset points", **style)

    sound = frame[frame["fault"] == "clean"]
    axis.axhspan(-SURE, SURE, color=NEUTRAL, alpha=0.1, linewidth=0)
    axis.plot(sound["k3"].clip(lower=LEAST), sound["z"], "o", color=NEUTRAL, markersize=3, alpha=0.5, markeredgewidth=0)
    say(f"no bug: {len(sound)} batches", LEAST, SURE, 0, 4, fontsize=10)
    toy = sound[sound["source"] == "chain"]
    places = {name: toy[toy["precision"] == precision]["k3"].median() for precision, name in FORMATS.items()}
    places["SmolLM2, INT8 and FP8"] = sound[sound["k3"] > LANGUAGE]["k3"].median()
    for name, place in places.items():
        say(name, place, -SURE, 0, -11, ha="center", color=NEUTRAL)
    for label, (faults, colour, marker) in BUGS.items():
        dumps = frame[frame["fault"].isin(list(faults))]
        axis.plot(dumps["k3"], dumps["z"], marker, color=colour, markersize=5, linestyle="", markeredgewidth=0)
        edge = max(dumps["z"], key=abs)
        say(f"{label}: {len(dumps)} batches", dumps["k3"].min(), edge, -8, 0, ha="right", va="center", color=colour, fontsize=10)
    axis.set_xscale("log")
    axis.set_xlabel("K3, the size of the difference between engine and trainer, in nats per token")
    axis.set_ylabel("mean ratio − 1, in standard errors")
    axis.set_title(TITLE, fontsize=12)
    return figure


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes(png(picture(read(Path(sys.argv[1]))), dpi=130))
