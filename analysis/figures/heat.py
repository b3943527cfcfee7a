"""Heat maps whose cells give a value and the number of runs behind it."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from analysis.colours import ink
from analysis.figures.style import HEAT, WIDTH, apart, lines, row_height, short, subplots
from analysis.labels import brief

FONT, LETTER, LINE = 7, 4.3, 8.6
"""Size of the text in a heat map, width of a letter and height of a line, in points."""
Cells = dict[tuple[str, str], tuple[float, str]]
"""Cells of a heat map, by (row, column). Each has a value in 0..1, which gives its colour, and a text."""


def heat_maps(maps: Sequence[tuple[Cells, str, bool]], rows: Sequence[str], columns: Sequence[str]) -> Figure:
    """Heat maps side by side over the same rows and columns. maps: (cells, title, whether a high value is bad) of each."""
    down = [short(row, 44) for row in apart(rows)]
    least = 72 * WIDTH - LETTER * max(len(line) for label in down for line in label.splitlines())
    across, upright = _column_labels(columns, 0.9 * least / len(maps) / len(columns))
    above = LETTER * max(len(line) for label in across for line in label.splitlines()) if upright else LINE * lines(across)
    figure, axes = subplots(1, len(maps), 0.6 + above / 72 + max(0.3, row_height(down, FONT)) * len(rows), sharey=True)
    for axis, (cells, title, bad_is_high) in zip(axes[0], maps, strict=True):
        _heat(axis, cells, rows, columns, bad_is_high)
        axis.set_title(title)
        axis.set_yticks(range(len(rows)), down, fontsize=FONT)
        axis.xaxis.tick_top()
        axis.set_xticks(range(len(columns)), across, fontsize=FONT, rotation=90 if upright else 0)
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
    return figure


def _column_labels(columns: Sequence[str], room: float) -> tuple[list[str], bool]:
    """The labels of the columns, and whether they are vertical because a word is too wide. room: column width in points."""
    names, most = apart(columns), int(room / LETTER)
    if max(len(word) for name in names for word in brief(name).split(" ")) <= most:
        return [short(name, most) for name in names], False
    widths = (26, 40, 60, 400)
    fitting = (width for width in widths if LINE * lines([short(name, width) for name in names]) <= room)
    return [short(name, next(fitting, widths[-1])) for name in names], True


def _heat(axis: Axes, cells: Cells, rows: Sequence[str], columns: Sequence[str], bad_is_high: bool) -> None:
    """Draw one heat map, in which a strong colour means a bad value, even on a grey print. Cells without runs stay empty."""
    values = np.full((len(rows), len(columns)), np.nan)
    colours = matplotlib.colormaps[HEAT if bad_is_high else f"{HEAT}_r"]
    for (row, column), (value, words) in cells.items():
        at = rows.index(row), columns.index(column)
        values[at] = value
        axis.text(at[1], at[0], words, ha="center", va="center", fontsize=FONT, color=ink(to_hex(colours(value))))
    edges = (np.arange(len(places) + 1) - 0.5 for places in (columns, rows))
    axis.pcolormesh(*edges, np.ma.masked_invalid(values), vmin=0, vmax=1, cmap=colours, edgecolors="face")
    axis.set_ylim(len(rows) - 0.5, -0.5)
