"""The page of `faultline gradient`: an answer in words, a table, and a figure of bias against standard deviation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from analysis.figures.style import legend_below, series, short, subplots
from analysis.frames import csv, show
from analysis.marks import CONTROL, MARKERS
from analysis.page import Section, page
from faultline.tools.gradient.methods import EXACT
from harness.files import output_folder, write_file

FILLS = ("none", "full", "left")
"""Fill styles of markers. The next one is used when all markers of one style stand for a method."""
GAP = 2.0
"""Free pixels around each text of the figure, because a browser's font may be wider."""
SHOWN = ("cosine", "norm ratio", "bias", "sd", "rmse")


def answer(table: pd.DataFrame) -> list[str]:
    """Sentences on the comparison: the method closest to the true gradient, the least biased one, and its cost in variance."""
    named = table[table.family.isna() & (table.method != EXACT)]
    plain = named[named.method.str.endswith(" none")]
    best, least = (named.iloc[int(np.nanargmin(column))] for column in (named.rmse, named.bias))
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


def shown(table: pd.DataFrame) -> pd.DataFrame:
    """Format the table of gradients: numbers, with their intervals in brackets where there are any."""
    return pd.DataFrame(
        [{"method": row["method"], **{name: _spread(row, name, ".3f") for name in SHOWN}} for row in table.to_dict("records")]
    )


def present(table: pd.DataFrame, title: str, note: str, out: Path) -> Path:
    """Print the named methods and write gradient.html and gradient.csv into `out`. Returns the page's path."""
    show(title, shown(table[table.family.isna()]))
    print(*answer(table), sep="\n")
    out = output_folder(out)
    write_file(out, "gradient.csv", csv(table))
    write_file(out, "gradient.html", _page(table, title, note))
    return out / "gradient.html"


def present_paired(table: pd.DataFrame, title: str, note: str, out: Path) -> Path:
    """Print every method against no correction, the second row, and write paired.csv into `out`. Returns its path."""
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
    """Format a statistic of a row, with its interval in brackets if it has one."""
    low, high = (row.get(f"{name} {end}", np.nan) for end in ("low", "high"))
    return f"{row[name]:{form}}" + ("" if np.isnan(low) else f" [{low:{form}}, {high:{form}}]")


def _page(table: pd.DataFrame, title: str, note: str) -> str:
    caption = (
        "Bias and standard deviation, relative to the length of the true gradient; lower left is better. A line joins the "
        f"bounds C of a family, whose values stand beside its points where there is room. {note}"
    )
    methods = Section("Methods", table=shown(table), wrapped=False)
    return page(title, answer(table), [Section("Bias and standard deviation", caption, figure=_figure(table)), methods])


def _figure(table: pd.DataFrame) -> Figure:
    figure, ((axis,),) = subplots(1, 1, 6.0)
    values = []
    for i, (family, part) in enumerate(table.dropna(subset="family").groupby("family", sort=False)):
        axis.plot(part.bias, part.sd, **series(i), marker=".", linewidth=1.2, label=family)
        look = {"fontsize": 7, "color": series(i)["color"], "xytext": (3, 3), "textcoords": "offset points"}
        values += [axis.annotate(f"{c:g}", (x, y), **look) for c, x, y in part[["bound", "bias", "sd"]].to_numpy(float)]
    named = table[table.family.isna()]
    for i, (method, x, y) in enumerate(zip(named.method, named.bias, named.sd, strict=True)):
        fill = FILLS[i // len(MARKERS) % len(FILLS)]
        axis.plot(x, y, linestyle="", marker=MARKERS[i % len(MARKERS)], fillstyle=fill, color=CONTROL, label=short(method))
    axis.set_xlabel("bias")
    axis.set_ylabel("standard deviation")
    axis.grid(alpha=0.25)
    legend_below(figure, [axis])
    _thin_out(figure, values)
    return figure


def _thin_out(figure: Figure, texts: Sequence[Text]) -> None:
    """Remove each text that would overlap an earlier one."""
    figure.draw_without_rendering()
    kept: list[Bbox] = []
    for text in texts:
        box = text.get_window_extent().padded(GAP)
        if any(box.overlaps(other) for other in kept):
            text.remove()
        else:
            kept.append(box)
