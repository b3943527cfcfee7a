"""Heat maps whose cells say their number and how many runs it is of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from analysis.figures.style import HEAT, apart, short

FEW = 4
"""Columns up to which labels are slanted: beside more they would run into each other."""
Cells = dict[tuple[str, str], tuple[float, str]]
"""(row, column) -> value in 0..1, words of the cell."""


def heat(axis: Axes, cells: Cells, rows: Sequence[str], columns: Sequence[str], title: str, bad_is_high: bool) -> None:
    """Dark is bad, so that a grey print reads the same; a combination that was not run stays white."""
    values = np.full((len(rows), len(columns)), np.nan)
    for (row, column), (value, words) in cells.items():
        at = rows.index(row), columns.index(column)
        values[at] = value
        dark = value > 0.5 if bad_is_high else value < 0.5
        axis.text(at[1], at[0], words, ha="center", va="center", fontsize=7, color="white" if dark else "black")
    colours = f"{HEAT}_r" if bad_is_high else HEAT
    axis.imshow(np.ma.masked_invalid(values), vmin=0, vmax=1, cmap=colours, aspect="auto")
    axis.set_title(title)
    axis.set_yticks(range(len(rows)), [short(row, 44) for row in apart(rows)], fontsize=7)
    axis.xaxis.tick_top()
    few = len(columns) <= FEW
    labels = [short(column, 20 if few else 26) for column in apart(columns)]
    turned: dict[str, Any] = {"rotation": 30, "ha": "left"} if few else {"rotation": 90, "ha": "center"}
    axis.set_xticks(range(len(columns)), labels, fontsize=7, **turned)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)


def height(rows: int) -> float:
    """Inches of a heat map."""
    return 1.0 + 0.3 * rows
