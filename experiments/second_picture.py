"""The pictures of the second study: the cost of a mismatch by its size, persistence and correction, and in long runs.

    python -m experiments.second_picture FOLDER OUT

The command reads endpoints.csv and long.csv in FOLDER, which `python -m experiments.second` keeps, and writes second.png,
second_long.png and persistence.png into OUT.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from analysis.figures.style import series
from analysis.statistics.dose import LAST, Curve, Real, curves, precisions
from experiments.second import OWN, SAMPLING, points

NAMES = {
    ("none", 0.0): "fresh noise",
    ("none", 1.0): "fixed noise",
    ("token-truncate", 1.0): "with token truncation",
    ("sequence-truncate", 1.0): "with sequence truncation",
    ("sequence-mask", 1.0): "with a sequence mask",
}
"""Labels of the curves, by (correction, noise: 0 if redrawn at each sync, 1 if kept), in the order of the colours."""
BESIDE = {"fp8_tensor": (-48, -16), "fp8_block": (-48, -29), "nvfp4": (-48, -46), "nvfp4_w4a4": (-48, -30)}
"""Offset (x, y), in points, from the marker of a precision that costs reward to its label. A thin line joins the two."""
ABOVE = (0, 7)
"""Offset (x, y), in points, from a marker to the label above it."""
LONG = {(0.0, 0.0): "black", (0.2, 0.0): series(0)["color"], (0.2, 1.0): series(1)["color"]}
"""Colours of the runs of 2,800 steps, by their noise: (its relative size, 0 if redrawn at each sync or 1 if kept)."""
SMOOTHED = 5
"""Number of evaluations in a running mean. Five evaluations are 100 steps."""
FINDING = "A rollout error that persists costs the checkpoint more than one that is redrawn"
ABOUT = "toy model, synthetic noise of 20 % on the weights that sample; thin: 5 seeds, thick: their mean"
POLICIES = {OWN: "trainer's own policy", SAMPLING: "sampling policy"}


def main(folder: Path, out: Path) -> None:
    """Draw the three figures of the second study into `out`, from endpoints.csv and long.csv in `folder`."""
    out.mkdir(parents=True, exist_ok=True)
    _doses(folder).savefig(out / "second.png", dpi=150)
    long = pd.read_csv(folder / "long.csv")
    _long(long).savefig(out / "second_long.png", dpi=150)
    persistence(long).savefig(out / "persistence.png", dpi=150)


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
    for axis, policy in zip(axes[:, 0], POLICIES, strict=True):
        rings = [(arm.k3, arm.responses.mean()) for arm in real if arm.policy == policy]
        rank = spearmanr(*zip(*rings, strict=True)).statistic
        axis.set_title(f"no correction; rings: real precisions (K3 and reward: Spearman {rank:.2f})")
    axes[0, 1].set_title("corrections under fixed noise")
    for axis in axes[1]:
        axis.set_xlabel("K3 of the mismatch (nats per token)")
    return figure


def _long(curves: pd.DataFrame) -> Figure:
    """Draw held-out reward over 2,800 steps, one panel each for trainer and sampler: every seed, and their mean."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharex=True, sharey=True, layout="constrained")
    for axis, column, policy in zip(axes, ("own", "sampling"), POLICIES.values(), strict=True):
        for (noise, persistence), colour in LONG.items():
            name = f"{NAMES['none', persistence]} {noise}" if noise else "exact control"
            _seeds(axis, _rewards(curves, noise, persistence, column), colour, label=name)
        axis.set_title(policy)
        axis.set_xlabel("RL step")
    axes[0].set_ylabel(f"held-out reward, mean of {SMOOTHED} evaluations")
    axes[0].legend(fontsize=8, loc="lower left", frameon=False)
    return figure


def persistence(curves: pd.DataFrame) -> Figure:
    """Draw the trained policy's held-out reward by step: no noise, noise redrawn at each sync, noise kept. curves: long.csv."""
    figure, axis = plt.subplots(figsize=(8, 4), layout="constrained")
    end = {}
    for (noise, persistence), colour in LONG.items():
        rewards = _rewards(curves, noise, persistence, "own")
        end[noise, persistence] = rewards.iloc[-LAST:].mean().mean()
        _seeds(axis, rewards, colour)
    control, fresh, fixed = end.values()
    beside: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 10}
    names = (
        "no error",
        f"redrawn at each weight sync\ncosts {control - fresh:.2f} at the end",
        f"kept for the whole run\ncosts {control - fixed:.2f} at the end",
    )
    lifts = (-5, 0, 0)  # the first clears the label of the dotted line
    for name, value, colour, lift in zip(names, end.values(), LONG.values(), lifts, strict=True):
        axis.annotate(name, (curves.step.max(), value), (8, lift), color=colour, **beside)
    start = curves[curves.step == 0].own.mean()
    axis.hlines(start, 0, curves.step.max(), color="gray", linestyle=":", linewidth=1)
    axis.annotate("before RL", (curves.step.max(), start), (8, 0), color="gray", **beside)
    axis.set_title(f"{FINDING}\n", fontsize=12)
    axis.text(0, 1.02, ABOUT, transform=axis.transAxes, fontsize=9, color="gray")
    axis.set_xlabel("RL step")
    axis.set_ylabel("held-out reward of the trained policy")
    return figure


def _rewards(curves: pd.DataFrame, noise: float, persistence: float, column: str) -> pd.DataFrame:
    """Held-out rewards under one noise: a row per step, a column per seed. column: policy, `own` (trainer's) or `sampling`."""
    return curves[(curves.noise == noise) & (curves.persistence == persistence)].pivot(
        index="step", columns="seed", values=column
    )


def _seeds(axis: Axes, rewards: pd.DataFrame, colour: str, label: str | None = None) -> None:
    """Draw running means of rewards [steps, seeds]: a thin line per seed, and a thick line for their mean."""
    smooth = rewards.rolling(SMOOTHED, min_periods=1).mean()  # of past steps: all runs begin at the warm start's reward
    axis.plot(smooth.index, smooth, linewidth=0.6, alpha=0.3, color=colour)
    axis.plot(smooth.index, smooth.mean(axis=1), linewidth=2.2, label=label, color=colour)
    axis.grid(alpha=0.2)


def _draw(axis: Axes, own: list[Curve], real: list[Real]) -> None:
    """Draw reward against K3: means and fitted curves with bands of synthetic noise (`own`), means of precisions, the control."""
    axis.set_xscale("log")
    axis.grid(alpha=0.2)
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
        below = at[1] < own[0].control.mean() - 0.01
        place = BESIDE.get(arm.precision, ABOVE) if below else ABOVE
        line = {"arrowstyle": "-", "linewidth": 0.5, "color": "0.5", "shrinkB": 4} if below else None
        axis.annotate(arm.precision, at, xytext=place, textcoords="offset points", fontsize=7, ha="center", arrowprops=line)
    axis.legend(fontsize=8, loc="lower left", frameon=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
