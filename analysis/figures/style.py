"""The style of every figure: print size, labels, legends outside the panels, and at most eight lines in a panel."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.text import Text

from analysis.colours import dark
from analysis.labels import brief
from analysis.marks import DASHES, HUES, MARKERS, Mark

PANEL = 8
"""Maximum number of lines drawn in one panel (axes) of a figure; further ones get another panel."""
SERIES = tuple(HUES[name] for name in ("bf16", "nvfp4_w4a4", "nvfp4", "int8", "fp8_tensor", "fp16", "mxfp8", "fp8_block"))
"""Colours of lines that do not stand for runs of a sweep. Those that do are coloured by `Results.marks`."""
HEAT = "Oranges"
"""Colour map of heat maps, from nearly white to a strong colour. Lightness falls evenly, so that a grey print is readable."""
WIDTH = 9.0
"""Width of a figure in inches."""

FigureOrReason = Figure | str
"""A figure, or the clause that says why there is none."""

matplotlib.rcParams |= {
    "svg.fonttype": "none",
    "svg.hashsalt": "faultline",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "legend.fontsize": 8,
}


def series(place: int) -> dict[str, Any]:
    """Colour and dash of line number `place` in a figure whose lines stand for no runs of a sweep; the first 64 are distinct."""
    return {"color": SERIES[place % len(SERIES)], "linestyle": DASHES[place // len(SERIES) % len(DASHES)]}


def chunks(items: Sequence, size: int = PANEL) -> list[list]:
    """The items split into nearly equal lists of at most `size`, by default the number of lines that fit one panel."""
    parts = -(-len(items) // size)
    return [list(items[i * len(items) // parts : (i + 1) * len(items) // parts]) for i in range(parts)]


def short(text: str, width: int = 34) -> str:
    """A label wrapped into lines of at most `width` characters, with config keys shortened to their last part."""
    return literal(textwrap.fill(brief(text), width, break_long_words=False, break_on_hyphens=False))


def lines(labels: Iterable[str]) -> int:
    """The number of lines in the tallest of `labels`; 1 if there is none."""
    return max((label.count("\n") + 1 for label in labels), default=1)


def row_height(labels: Sequence[str], points: float) -> float:
    """Height in inches of a row that fits the tallest of `labels`, in a font of `points`."""
    return 0.08 + lines(labels) * points * 1.2 / 72


def apart(names: Sequence[str]) -> list[str]:
    """The names without the words that all of them share. A name that has only shared words stays whole."""
    shared = set.intersection(*(set(name.split(" ")) for name in names)) if len(names) > 1 else set()
    return [" ".join(word for word in name.split(" ") if word not in shared) or name for name in names]


def literal(text: str) -> str:
    """The string with its dollar signs escaped, since matplotlib would read the part between two of them as a formula."""
    return re.sub(r"(?<!\\)\$", r"\$", text)


def subplots(rows: int, columns: int, height: float, **options) -> tuple[Figure, np.ndarray]:
    """A figure that is WIDTH by `height` inches and not registered with pyplot, and its axes [rows, columns]."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def grid(count: int, columns: int, height: float, **options) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels and their axes, in rows of `columns` panels, each row `height` inches high."""
    columns = min(columns, count)
    rows = -(-count // columns)
    figure, axes = subplots(rows, columns, rows * height, **options)
    for axis in axes.flat[count:]:
        axis.remove()
    return figure, list(axes.flat[:count])


def label_outer(axes: Sequence[Axes], x: str, y: str = "") -> None:
    """Label the x axis of each column's lowest panel, and the y axis of each row's first panel. axes: as `grid` returns them."""
    places = [place for axis in axes if (place := axis.get_subplotspec()) is not None]
    last = {place.colspan.start: i for i, place in enumerate(places)}
    for i, (axis, place) in enumerate(zip(axes, places, strict=True)):
        if last[place.colspan.start] == i:
            axis.set_xlabel(x)
            axis.tick_params(labelbottom=True)
        if place.is_first_col():
            axis.set_ylabel(y)


Handle = Line2D | tuple[Line2D, ...]
"""The handle of one legend entry: a line, or several lines that are drawn side by side."""


def legend_below(figure: Figure, axes: Iterable[Axes], more: Mapping[str, Handle] | None = None) -> None:
    """Put one legend below all panels. A label must mean one line in all panels. more: handles to add at the end, by label."""
    labels: dict[str, Any] = {}
    for axis in axes:
        labels |= {label: handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    labels |= more or {}
    if labels:
        width = max(len(line) for label in labels for line in label.splitlines())
        columns = max(1, min(4, 120 // (width + 10), len(labels)))
        options: dict[str, Any] = {"ncols": columns, "handlelength": 4.0, "handler_map": {tuple: HandlerTuple(ndivide=None)}}
        rows = -(-len(labels) // columns) * lines(list(labels))
        figure.set_figheight(figure.get_figheight() + 0.17 * max(0, rows - 2))  # else a long legend would shrink the panels
        figure.legend(labels.values(), labels.keys(), loc="outside lower center", **options)


def key(mark: Mark, line: bool = True, **options) -> Line2D:
    """A legend handle in the look of `mark`: a line, with the marker unless that is a circle; the marker alone if not `line`."""
    if line:
        marker = "" if mark.marker == MARKERS[0] else mark.marker
        return Line2D([], [], linewidth=1.6, marker=marker, markersize=4, **mark.line, **options)
    return Line2D([], [], linestyle="", marker=mark.marker, color=mark.colour, **options)


class Drawing(NamedTuple):
    """A figure as an SVG element, with the coordinates of those curves that each show one run.

    curves: {"panels": [{"box": [left, top, width, height] in SVG units, "x": [least, most, whether logarithmic], "y": as "x"}],
    "curves": [{"id": id of the SVG element, "run": run id, "panel": index in "panels", "x": [...], "y": [...]}]}.
    """

    svg: str
    curves: dict[str, list[dict[str, Any]]]


def draw(figure: Figure, name: str) -> Drawing:
    """The figure as SVG. name: prefix of the ids of its curves. A line whose gid is a run's id is the curve of that run.

    The background is transparent, and each colour has a variant for dark pages. matplotlib writes no fill for black, so text and
    black shapes take the page's text colour. The texts may come from an untrusted run, so they are escaped.
    """
    for text in figure.findobj(Text):
        text.set_text(literal(text.get_text()))
    curves: list[dict[str, Any]] = []
    for number, axis in enumerate(figure.axes):
        for line in axis.lines:
            if (run := line.get_gid()) is not None:
                line.set_gid(f"{name}-curve-{len(curves)}")
                x, y = (np.asarray(values, float) for values in line.get_data())
                points = {"x": [_plain(value) for value in x], "y": [_plain(value) for value in y]}
                curves.append({"id": line.get_gid(), "run": run, "panel": number, **points})
    _settle(figure)
    buffer = io.StringIO()
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=metadata, dpi=110, transparent=True)
    panels = [_panel(figure, axis) for axis in figure.axes] if curves else []  # once the layout is settled
    svg = buffer.getvalue()[buffer.getvalue().index("<svg") :]
    return Drawing(re.sub(r"(?<=[\"; ])(fill|stroke): (#[0-9a-f]{6})", themed, svg), {"panels": panels, "curves": curves})


def _settle(figure: Figure) -> None:
    """Fix the positions of a figure's panels, with text sizes as in an SVG. Else saving would draw the figure once more."""
    FigureCanvasSVG(figure)
    if engine := figure.get_layout_engine():
        engine.execute(figure)
        figure.set_layout_engine(None)  # "none" leaves a placeholder, for which saving draws twice too


def themed(declaration: re.Match[str]) -> str:
    """The matched CSS declaration of a colour, followed by one with `light-dark` that adds a colour for dark pages."""
    name, colour = declaration.groups()
    return f"{name}: {colour}; {name}: light-dark({colour}, {dark(colour)})"


def png(figure: Figure, dpi: int = 110) -> bytes:
    """The figure as the bytes of a PNG file; equal figures give equal bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()


def _plain(value: float) -> float:
    return float(f"{value:.5g}")


def _panel(figure: Figure, axis: Axes) -> dict[str, Any]:
    width, height = (72 * inches for inches in figure.get_size_inches())
    place = axis.get_position()
    box = [place.x0 * width, (1 - place.y1) * height, place.width * width, place.height * height]
    return {
        "box": [round(value, 2) for value in box],
        "x": [*map(float, axis.get_xlim()), axis.get_xscale() == "log"],
        "y": [*map(float, axis.get_ylim()), axis.get_yscale() == "log"],
    }
