"""What a comparison of gradients shows: an answer in words, a table, and bias against standard deviation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis.figures.style import legend_below, series, subplots
from analysis.frames import show
from analysis.marks import CONTROL
from analysis.page import Section, page
from faultline.tools.gradient.methods import EXACT

SHOWN = ("cosine", "norm ratio", "bias", "sd", "rmse")


def answer(table: pd.DataFrame) -> list[str]:
    """Which correction is closest to the true gradient, and what it costs in variance; a sentence each."""
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
    """Formatted; intervals, where there are any, in brackets."""
    rows = []
    for row in table.to_dict("records"):
        cells = {"method": row["method"]}
        for name in SHOWN:
            low, high = (row.get(f"{name} {end}", np.nan) for end in ("low", "high"))
            cells[name] = f"{row[name]:.3f}" + ("" if np.isnan(low) else f" [{low:.3f}, {high:.3f}]")
        rows.append(cells)
    return pd.DataFrame(rows)


def present(table: pd.DataFrame, title: str, note: str, out: Path) -> Path:
    """Print the named methods, write gradient.html and gradient.csv into `out`; the page's path."""
    show(title, shown(table[table.family.isna()]))
    print(*answer(table), sep="\n")
    out.mkdir(parents=True, exist_ok=True)
    table.to_csv(out / "gradient.csv", index=False)
    target = out / "gradient.html"
    target.write_text(_page(table, title, note), encoding="utf-8")
    return target


def _page(table: pd.DataFrame, title: str, note: str) -> str:
    caption = (
        "Bias and standard deviation, relative to the length of the true gradient; lower left is better. A line joins the "
        f"bounds C of a family, whose values stand beside its points. {note}"
    )
    methods = Section("Methods", table=shown(table), wrapped=False)
    return page(title, answer(table), [Section("Bias and standard deviation", caption, figure=_figure(table)), methods])


def _figure(table: pd.DataFrame) -> Figure:
    figure, ((axis,),) = subplots(1, 1, 6.0)
    for i, (family, part) in enumerate(table.dropna(subset="family").groupby("family", sort=False)):
        axis.plot(part.bias, part.sd, **series(i), marker=".", linewidth=1.2, label=family)
        for bound, x, y in part[["bound", "bias", "sd"]].to_numpy(float):
            axis.annotate(f"{bound:g}", (x, y), fontsize=7, color=series(i)["color"], xytext=(3, 3), textcoords="offset points")
    named = table[table.family.isna()]
    for method, x, y in zip(named.method, named.bias, named.sd, strict=True):
        axis.plot(x, y, marker="x", color=CONTROL)
        axis.annotate(method, (x, y), fontsize=8, xytext=(5, -9), textcoords="offset points")
    axis.set_xlabel("bias")
    axis.set_ylabel("standard deviation")
    axis.grid(alpha=0.25)
    legend_below(figure, [axis])
    return figure
