"""The pictures of the second study: the cost of a mismatch by its size, persistence and correction, and in long runs.

    python -m experiments.second_picture experiments/study/second docs

It reads FOLDER/endpoints.csv and FOLDER/long.csv, which `python -m experiments.second` keeps, and writes second.png and
second_long.png.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.style import series
from analysis.statistics.dose import Curve, Real, curves, precisions
from experiments.second import OWN, SAMPLING, points

NAMES = {
    ("none", 0.0): "fresh noise",
    ("none", 1.0): "fixed noise",
    ("token-truncate", 1.0): "with token truncation",
    ("sequence-truncate", 1.0): "with sequence truncation",
    ("sequence-mask", 1.0): "with a sequence mask",
}
"""(correction, persistence) of a curve -> its name, in the order of the colours."""
BESIDE = {"fp8_block": (-16, -13), "nvfp4": (-2, -14)}
"""Precision -> offset of its name from its marker in points, for names that would overlap a neighbour's."""
SMOOTHED = 5
"""Number of evaluations in a running mean, which are 100 steps."""
POLICIES = {OWN: "trainer's own policy", SAMPLING: "sampling policy"}


def main(folder: Path, out: Path) -> None:
    """Write the second study's two pictures into `out`."""
    _doses(folder).savefig(out / "second.png", dpi=150)
    _long(pd.read_csv(folder / "long.csv")).savefig(out / "second_long.png", dpi=150)


def _doses(folder: Path) -> Figure:
    table = points(pd.read_csv(folder / "endpoints.csv"))
    fitted = [curve for curve in curves(table) if (curve.correction, curve.persistence) in NAMES and curve.level is not None]
    real = [arm for arm in precisions(table) if arm.correction == "none"]
    figure, axes = plt.subplots(2, 2, figsize=(10, 6.6), sharex=True, sharey="row", layout="constrained")
    for row, (policy, name) in zip(axes, POLICIES.items(), strict=True):
        own = [curve for curve in fitted if curve.policy == policy]
        left, right = row
        _draw(left, [curve for curve in own if curve.correction == "none"], [arm for arm in real if arm.policy == policy])
        _draw(right, [curve for curve in own if curve.persistence == 1], [])
        left.set_ylabel(f"held-out reward of the\n{name}")
    axes[0, 0].set_title("no correction; rings are real precisions")
    axes[0, 1].set_title("corrections under fixed noise")
    for axis in axes[1]:
        axis.set_xlabel("K3 of the mismatch (nats per token)")
    return figure


def _long(curves: pd.DataFrame) -> Figure:
    """Draw held-out reward over 2,800 steps, a panel per policy: each seed, and the mean of the seeds."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharex=True, sharey=True, layout="constrained")
    arms = {(0.0, 0.0): ("exact control", {"color": "black", "linestyle": "-"})}
    arms |= {(0.2, persistence): (f"{NAMES['none', persistence]} 0.2", series(at)) for at, persistence in enumerate((0.0, 1.0))}
    for axis, column, policy in zip(axes, ("own", "sampling"), POLICIES.values(), strict=True):
        for (noise, persistence), (name, look) in arms.items():
            arm = curves[(curves.noise == noise) & (curves.persistence == persistence)]
            by_seed = arm.pivot(index="step", columns="seed", values=column).rolling(SMOOTHED, center=True, min_periods=1).mean()
            axis.plot(by_seed.index, by_seed, linewidth=0.6, alpha=0.4, color=look["color"])
            axis.plot(by_seed.index, by_seed.mean(axis=1), linewidth=2.2, label=name, **look)
        axis.set_title(policy)
        axis.set_xlabel("RL step")
        axis.grid(alpha=0.2)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel(f"held-out reward, mean of {SMOOTHED} evaluations")
    axes[0].legend(fontsize=8, loc="lower left", frameon=False)
    return figure


def _draw(axis: Axes, own: list[Curve], real: list[Real]) -> None:
    """Draw the means of arms, their fits and bands, and the exact control as a line."""
    axis.set_xscale("log")
    axis.grid(alpha=0.2)
    axis.spines[["top", "right"]].set_visible(False)
    for curve in own:
        name = NAMES[curve.correction, curve.persistence]
        look = series(list(NAMES.values()).index(name))
        x = np.geomspace(curve.doses[0], curve.doses[-1], 100)
        middle, low, high = curve.at(x)
        axis.plot(x, middle, linewidth=1.6, label=name, **look)
        axis.fill_between(x, low, high, color=look["color"], alpha=0.13, linewidth=0)
        axis.plot(curve.doses, [runs.mean() for runs in curve.responses], "o", color=look["color"], markersize=4)
    if own:
        axis.axhline(own[0].control.mean(), color="black", linewidth=1, label="exact control")
    for arm in real:
        axis.plot(arm.k3, arm.responses.mean(), "o", color="black", markerfacecolor="white", markersize=6)
        at = arm.k3, arm.responses.mean()
        place = BESIDE.get(arm.precision, (0, 7))
        axis.annotate(arm.precision, at, xytext=place, textcoords="offset points", fontsize=7, ha="center")
    axis.legend(fontsize=8, loc="lower left", frameon=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
