"""The figure of dose and response: what a mismatch of a given size and persistence costs, under each correction."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.style import COLOURS, MARKERS, chunks, legend_below, literal, look, short, subplots
from analysis.results import Results
from analysis.statistics.dose import LEAST, MARGIN, Curve, Real, precisions

POINTS = 120
"""At which a fit is drawn."""


def response(results: Results) -> Figure | str:
    """Reward over K3: a row per policy, a column per persistence, a line per correction."""
    curves = results.curves
    if not curves:
        return "No run has noise on its weights beside an exact control, so there is no dose."
    if all(curve.level is None for curve in curves):
        most = max(len(curve.doses) for curve in curves)
        return f"No correction and persistence has {LEAST} doses of noise (the most is {most}), so no curve can be fitted."
    columns = sorted({curve.persistence for curve in curves})
    rows = [
        (key, part)
        for key in dict.fromkeys(curve.family for curve in curves)
        for part in chunks(list(dict.fromkeys(curve.correction for curve in curves if curve.family == key)))
    ]
    real = precisions(results.dosed)
    figure, axes = subplots(len(rows), len(columns), 0.6 + 3.0 * len(rows), sharex=True, sharey="row")
    for (key, part), line in zip(rows, axes, strict=True):
        mine = [curve for curve in curves if curve.family == key and curve.correction in part]
        own = [arm for arm in real if arm.family == key and arm.correction in part]
        for axis, persistence in zip(line, columns, strict=True):
            _control(axis, mine[0].control, results.margin or MARGIN)
            shown = [curve for curve in mine if curve.persistence == persistence]
            for curve in shown:
                _curve(axis, curve, part.index(curve.correction))
            for arm in own:
                if persistence == nearest(arm.measured, mine):
                    _precision(axis, arm, part.index(arm.correction))
            apart = key[1:] if len({key[1:] for key, _ in rows}) > 1 else ()
            axis.set_title(short(", ".join(filter(None, [_named(persistence), *apart])), 40))
        line[0].set_ylabel(f"held-out reward of\n{key[0]}")
    for axis in axes[-1]:
        axis.set_xlabel("median K3 (nats per token)")
    legend_below(figure, axes.flat)
    return figure


def nearest(measured: float, curves: list[Curve]) -> float | None:
    """The persistence of the noise whose runs measured the nearest persistence over 20 syncs; None where nothing measured it."""
    apart = [(abs(curve.measured - measured), curve.persistence) for curve in curves]
    return min((pair for pair in apart if not np.isnan(pair[0])), default=(0.0, None))[1]


def _named(persistence: float) -> str:
    word = {0.0: "fresh noise", 1.0: "fixed noise"}.get(persistence, "noise")
    return f"{word}, persistence {persistence:g}"


def _control(axis: Axes, control: np.ndarray, margin: float) -> None:
    axis.axhline(control.mean(), color="grey", linewidth=1, label="control")
    axis.axhline(control.mean() - margin, color="grey", linewidth=0.8, linestyle=":", label=f"control − {margin:g}")
    axis.set_xscale("log")
    axis.grid(alpha=0.2)


def _curve(axis: Axes, curve: Curve, place: int) -> None:
    """The fit with its band, from a tenth of the least dose on; else the points alone. Points: means of arms."""
    colour, means = COLOURS[place], [values.mean() for values in curve.responses]
    label = "no correction" if curve.correction == "none" else short(curve.correction)
    axis.plot(curve.doses, means, MARKERS[place], color=colour, markersize=5, label=label)
    if curve.level is not None:
        x = np.geomspace(curve.doses[0] / 10, curve.doses[-1], POINTS)
        fitted, low, high = curve.at(x)
        axis.plot(x, fitted, **look(place), linewidth=1.5)
        axis.fill_between(x, low, high, color=colour, alpha=0.13, linewidth=0)


def _precision(axis: Axes, arm: Real, place: int) -> None:
    """An open marker in the colour of the correction; without a correction, named."""
    at = arm.k3, arm.responses.mean()
    axis.plot(*at, MARKERS[place], color=COLOURS[place], markerfacecolor="white", markersize=7)
    if arm.correction == "none":
        axis.annotate(literal(arm.precision), at, xytext=(4, 5), textcoords="offset points", fontsize=7)
