"""The figure of held-out reward against the K3 of synthetic noise, for several corrections and correlations of the noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.figures.style import FigureOrReason, key, legend_below, literal, short, subplots
from analysis.marks import CONTROL, NEUTRAL, SOLID, Mark
from analysis.results import Results
from analysis.statistics.dose import LEAST, MARGIN, Curve, Real, precisions

POINTS = 120
"""Number of points at which a fitted curve of reward over K3 is drawn."""


def response(results: Results) -> FigureOrReason:
    """The figure of held-out reward over the K3 of synthetic noise on the weights, or the reason why there is none.

    Panels: a row per policy and correction, a column per correlation of the noise between versions of the weights.
    """
    curves = results.curves
    if not curves:
        return "no run has noise on its weights beside an exact control"
    if all(curve.level is None for curve in curves):
        most = max(len(curve.doses) for curve in curves)
        return f"no correction and persistence has {LEAST} doses of noise (the most is {most}), so no curve can be fitted"
    if any(curve.level is not None and curve.doses[-1] == 0 for curve in curves):
        return "K3 is exactly 0 in arms with noise, so that they have no dose"
    columns = sorted({curve.persistence for curve in curves})
    families = list(dict.fromkeys(curve.family for curve in curves))
    by_family = sorted(curves, key=lambda curve: families.index(curve.family))
    rows = list(dict.fromkeys((curve.family, curve.correction) for curve in by_family))
    real, margin = precisions(results.dosed), results.margin or MARGIN
    differ = [len(set(words)) > 1 for words in zip(*((*family[1:], correction) for family, correction in rows), strict=True)]
    figure, axes = subplots(len(rows), len(columns), 0.6 + 2.7 * len(rows), sharex=True, sharey="row")
    for (family, correction), line in zip(rows, axes, strict=True):
        mine = [curve for curve in curves if (curve.family, curve.correction) == (family, correction)]
        plain = [curve for curve in curves if curve.family == family and curve.correction == "none" != correction]
        own = [arm for arm in real if (arm.family, arm.correction) == (family, correction)]
        apart = [word for word, differs in zip((*family[1:], correction), differ, strict=True) if differs and word != "none"]
        for axis, persistence in zip(line, columns, strict=True):
            _control(axis, mine[0].control, margin)
            for curve in plain:
                if curve.persistence == persistence and curve.level is not None:
                    axis.plot(*_fitted(curve)[:2], color=NEUTRAL, linewidth=0.8, linestyle="--")
            for curve in mine:
                if curve.persistence == persistence:
                    _curve(results, axis, curve)
            for arm in own:
                if persistence == nearest(arm.measured, mine):
                    look = results.marks.source(arm.precision)
                    _precision(axis, arm, look._replace(marker=results.marks.corrections[correction][0]))
            axis.set_title(short(", ".join([_named(persistence), *apart]), 40))
        line[0].set_ylabel(f"held-out reward of\n{family[0]}")
    for axis in axes[-1]:
        axis.set_xlabel("median K3 (nats per token)")
    legend_below(figure, [], _legend(margin, any(correction != "none" for _, correction in rows)))
    return figure


def nearest(measured: float, curves: list[Curve]) -> float | None:
    """The persistence of the noise of the curve whose measured persistence is nearest to `measured`; None if unmeasured.

    Persistence is a correlation over weight syncs: a config value of the noise, and measured over 20 syncs for the log ratios.
    """
    apart = [(abs(curve.measured - measured), curve.persistence) for curve in curves]
    return min((pair for pair in apart if not np.isnan(pair[0])), default=(0.0, None))[1]


def _named(persistence: float) -> str:
    word = {0.0: "fresh noise", 1.0: "fixed noise"}.get(persistence, "noise")
    return f"{word}, persistence {persistence:g}"


def _control(axis: Axes, control: np.ndarray, margin: float) -> None:
    axis.axhline(control.mean(), color=CONTROL, linewidth=1)
    axis.axhline(control.mean() - margin, color=CONTROL, linewidth=0.8, linestyle=":")
    axis.set_xscale("log")
    axis.grid(alpha=0.2)


def _legend(margin: float, corrected: bool) -> dict[str, Line2D]:
    lines: dict[str, tuple[str, float, Any]] = {"control": (CONTROL, 1, "-"), f"control − {margin:g}": (CONTROL, 0.8, ":")}
    lines["fit to the arms"] = NEUTRAL, 1.5, "-"
    lines |= {"fit without a correction": (NEUTRAL, 0.8, "--")} if corrected else {}
    legend = {name: Line2D([], [], color=hue, linewidth=width, linestyle=dash) for name, (hue, width, dash) in lines.items()}
    arm = key(Mark(NEUTRAL, "o", SOLID), line=False)
    return legend | {"arm with noise": arm, "real precision": key(Mark(NEUTRAL, "o", SOLID), line=False, markerfacecolor="white")}


def _fitted(curve: Curve) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Points of a fitted curve: (K3, reward, lower and upper end of its 95% band), from a tenth of the least positive K3 on."""
    x = np.geomspace(curve.doses[curve.doses > 0][0] / 10, curve.doses[-1], POINTS)
    return x, *curve.at(x)


def _curve(results: Results, axis: Axes, curve: Curve) -> None:
    """Draw reward over K3 of synthetic noise: mean reward at each size of the noise and, if fitted, the curve with its band."""
    if curve.level is not None:
        x, fitted, low, high = _fitted(curve)
        axis.plot(x, fitted, color=NEUTRAL, linewidth=1.5)
        axis.fill_between(x, low, high, color=NEUTRAL, alpha=0.13, linewidth=0)
    table = results.dosed
    names = ["policy", "loss", "setting", "correction", "persistence"]
    mine = table[(table[names] == pd.Series([*curve.family, curve.correction, curve.persistence], names)).all(axis=1)]
    for _, arm in mine[mine.noise > 0].groupby("noise"):
        mark = results.marks.arms[results.runs.arm[arm.index[0]]]
        axis.plot(arm.k3.median(), arm.response.mean(), mark.marker, color=mark.colour, markersize=6)


def _precision(axis: Axes, arm: Real, mark: Mark) -> None:
    """Draw the mean reward of runs without synthetic noise at their K3: an open marker, labelled with their rollout precision."""
    at = arm.k3, arm.responses.mean()
    axis.plot(*at, mark.marker, color=mark.colour, markerfacecolor="white", markersize=7)
    axis.annotate(literal(arm.precision), at, xytext=(4, 5), textcoords="offset points", fontsize=7)
