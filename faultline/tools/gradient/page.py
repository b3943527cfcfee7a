"""The page of `faultline gradient`: an answer in words, a table, and a figure of bias against standard deviation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from analysis.colours import readable
from analysis.figures.style import legend_below, series, short, subplots
from analysis.frames import csv, show
from analysis.marks import CONTROL, HUES
from analysis.page import Section, page
from faultline.tools.gradient.methods import EXACT
from harness.files import output_folder, write_file

NEAR = (0.015, 0.03)
"""Shares of the figure's width and height within which the points of two gradient estimators count as one."""
SIDES = (((3, 3), "left", "bottom"), ((-3, 3), "right", "bottom"), ((3, -3), "left", "top"), ((-3, -3), "right", "top"))
"""Places of a label beside its point: offset in typographic points, horizontal and vertical alignment."""
RING = HUES["nvfp4_w4a4"]
"""Colour of the ring around the gradient estimator closest to the true gradient."""
GAP = 2.0
"""Free pixels around each label of the figure, since a browser's font may be wider than the measured one."""
RADIUS = 12.5
"""Radius of a point of the figure with its ring, in pixels."""
SHOWN = ("cosine", "norm ratio", "bias", "sd", "rmse")


def answer(table: pd.DataFrame) -> list[str]:
    """Return sentences on the gradient estimator of smallest rmse, on the least biased one, and on the variance of the latter."""
    named = table[table.family.isna() & (table.method != EXACT)]
    plain = named[named.method.str.endswith(" none")]
    best, least = _closest(table), named.iloc[int(np.nanargmin(named.bias))]
    sentences = [
        f"Closest in mean squared error: {best.method} (bias {best.bias:.3g}, sd {best.sd:.3g}, rmse {best.rmse:.3g}).",
        f"Least biased: {least.method} (bias {least.bias:.3g}, sd {least.sd:.3g}).",
    ]
    if len(plain):
        none = plain.iloc[0]
        sentences.append(f"Uncorrected: bias {none.bias:.3g}, sd {none.sd:.3g}, rmse {none.rmse:.3g}.")
        if none.sd > 0:
            times = f"{least.sd**2 / none.sd**2:.3g} times"
            sentences.append(f"The least biased method has {times} the variance of the uncorrected one.")
    if "rmse low" in table and len(named) > 1:
        overlapping = named[(named["rmse low"] <= best["rmse high"]) & (named.method != best.method)]
        if len(overlapping):
            sentences.append(f"The rmse interval of the closest overlaps with {len(overlapping)} of {len(named) - 1} others.")
    return sentences


def _closest(table: pd.DataFrame) -> pd.Series:
    """Return the row of smallest rmse among gradient estimators of a fixed bound, the exact sequence weight left out."""
    named = table[table.family.isna() & (table.method != EXACT)]
    return named.iloc[int(np.nanargmin(named.rmse))]


def shown(table: pd.DataFrame) -> pd.DataFrame:
    """Format the table of gradients: numbers, with their intervals in brackets if they have any."""
    return pd.DataFrame(
        [{"method": row["method"], **{name: _spread(row, name, ".3f") for name in SHOWN}} for row in table.to_dict("records")]
    )


def present(table: pd.DataFrame, title: str, note: str, out: Path) -> Path:
    """Print gradient estimators of a fixed bound; write all of them to gradient.html and gradient.csv. Returns the page path."""
    show(title, shown(table[table.family.isna()]))
    print(*answer(table), sep="\n")
    out = output_folder(out)
    write_file(out, "gradient.csv", csv(table))
    write_file(out, "gradient.html", _page(table, title, note))
    return out / "gradient.html"


def present_paired(table: pd.DataFrame, title: str, note: str, out: Path) -> Path:
    """Print each gradient estimator's comparison with no correction, and write paired.csv into `out`. Returns its path."""
    rows = [
        {
            "method": row["method"],
            "sd / sd of none": _spread(row, "sd ratio", ".3f"),
            "bias / sd of none": _spread(row, "bias", ".3f"),
            "pays from so many responses": _spread(row, "pays from", ",.0f").replace("inf", "never").replace("nan", "–"),
        }
        for row in table.to_dict("records")
    ]
    show(title, pd.DataFrame(rows))
    print(f"No correction: {table.method[1]}. {note} The bias is the distance from the exact sequence weight.")
    write_file(output_folder(out), "paired.csv", csv(table))
    return out / "paired.csv"


def _spread(row: dict[str, Any], name: str, form: str) -> str:
    """Format the statistic `name` of a row, with its 95 % interval in brackets if it has one."""
    low, high = (row.get(f"{name} {end}", np.nan) for end in ("low", "high"))
    return f"{row[name]:{form}}" + ("" if np.isnan(low) else f" [{low:{form}}, {high:{form}}]")


def _page(table: pd.DataFrame, title: str, note: str) -> str:
    caption = (
        "Bias and standard deviation, relative to the length of the true gradient; lower left is better. A number is a method, "
        "or several in one place, by ascending rmse. The ring marks the closest method. A line joins the bounds C of a family, "
        f"whose values stand beside its points where there is room. {note}"
    )
    methods = Section("Methods", table=shown(table), wrapped=False)
    return page(title, answer(table), [Section("Bias and standard deviation", caption, figure=draw(table)), methods])


def draw(table: pd.DataFrame) -> Figure:
    """Draw bias against sd of gradient estimators: a numbered point each, and a line per kind of correction along its bound."""
    figure, ((axis,),) = subplots(1, 1, 6.0)
    values: list[Annotation] = []
    for i, (family, part) in enumerate(table.dropna(subset="family").groupby("family", sort=False)):
        axis.plot(part.bias, part.sd, **series(i), marker=".", linewidth=1.2, label=family)
        look = {"fontsize": 7, "color": readable(series(i)["color"]), "textcoords": "offset points"}
        values += [axis.annotate(f"{c:g}", (x, y), (0, 0), **look) for c, x, y in part[["bound", "bias", "sd"]].to_numpy(float)]
    places, closest = together(table), _closest(table)
    for number, mine in enumerate(places, 1):
        x, y = mine[["bias", "sd"]].mean()
        best = closest.name in mine.index
        axis.plot(x, y, "o", markersize=15, color="white", markeredgecolor=RING if best else "white", markeredgewidth=2)
        name = short(_called(mine.method), 44)
        axis.plot(x, y, marker=f"${number}$", markersize=8, markeredgewidth=0.3, linestyle="", color=CONTROL, label=name)
    axis.set_xlabel("bias")
    axis.set_ylabel("standard deviation")
    axis.grid(alpha=0.25)
    legend_below(figure, [axis])
    figure.draw_without_rendering()  # the layout moves the points
    points = np.array([mine[["bias", "sd"]].mean() for mine in places])
    _spread_out(values, axis.transData.transform(points))
    return figure


def together(table: pd.DataFrame) -> list[pd.DataFrame]:
    """Group the estimators of a fixed bound, by ascending rmse, into tables, one per place (within NEAR) in the figure."""
    extent = table[["bias", "sd"]].max() - table[["bias", "sd"]].min()
    named = table[table.family.isna()].sort_values("rmse", kind="stable")
    groups: list[list[int]] = []
    for at in named.index:
        apart = [(table.loc[at, ["bias", "sd"]] - table.loc[group[0], ["bias", "sd"]]) / extent / NEAR for group in groups]
        near = next((group for group, by in zip(groups, apart, strict=True) if np.hypot(*by) < 1), None)
        if near is None:
            groups.append(near := [])
        near.append(at)
    return [table.loc[group] for group in groups]


def _called(methods: Iterable[str]) -> str:
    """Join names of the form "LOSS CORRECTION". Losses stand before a correction that they share: `pg, ppo icepop`."""
    losses: dict[str, dict[str, None]] = {}
    for method in methods:
        loss, _, correction = method.partition(" ")
        losses.setdefault(correction, {})[loss] = None
    return "; ".join(f"{', '.join(names)} {correction}" for correction, names in losses.items())


def _spread_out(texts: Sequence[Annotation], points: np.ndarray) -> None:
    """Put each label beside its point, clear of other labels and of `points` [n, 2] in pixels. Remove it if nowhere is free."""
    kept = [Bbox.from_bounds(x, y, 0, 0).padded(RADIUS) for x, y in points]
    for text in texts:
        for place, across, up in SIDES:
            text.set(position=place, ha=across, va=up)
            box = text.get_window_extent().padded(GAP)
            if not any(box.overlaps(other) for other in kept):
                kept.append(box)
                break
        else:
            text.remove()
