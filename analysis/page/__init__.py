"""A report as one HTML file without external resources, readable without scripts. Everything but the figures is escaped."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle
from matplotlib.path import Path

from analysis.figures.style import draw, themed
from analysis.frames import cells
from analysis.marks import Mark
from harness.errors import printable
from harness.progress import Progress

SVG = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C"}
"""Letter of the SVG path command for each of matplotlib's path codes."""


class Section(NamedTuple):
    """A section of a report's page: its title, then its list, figure, table, preformatted text and note, in this order.

    anchor: name of the section in links. warning: whether it is marked as a warning. wrapped: whether table cells wrap.
    """

    title: str
    note: str = ""
    figure: Figure | None = None
    table: pd.DataFrame | None = None
    items: Sequence[str] = ()
    text: str = ""
    anchor: str = ""
    warning: bool = False
    wrapped: bool = True

    @property
    def name(self) -> str:
        """The name of the section in links: `anchor`, or without one the title in lower case, its words joined by hyphens."""
        return self.anchor or re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


class Picture(NamedTuple):
    """A figure as SVG, with its curves in the format of `figures.style.Drawing`."""

    svg: Markup
    curves: dict[str, list[dict[str, Any]]]


def page(
    title: str,
    answer: Sequence[str],
    sections: Sequence[Section],
    note: str = "",
    link: tuple[str, str] | None = None,
    runs: Mapping[str, Mapping[str, Any]] | None = None,
    marks: Mapping[str, Mark] | None = None,
) -> str:
    """The page of a report as HTML.

    It shows the title, the answer, the note, a link to a section, then the sections. answer: at least one sentence; the first is
    the headline, and the rest are a list. link: (name of the section, words of the link).
    runs: by run id, {"arm", "seed", "href": URL of the run's folder or "", "settings": config values that differ between runs}.
    They are shown beside the run's curve.
    marks: marks of arms (runs alike but for the seed), by name. A mark is drawn before the name in the first column of a table.
    """
    shown, progress = [], Progress(len(sections))
    for section in sections:
        shown.append((section, _picture(section), _table(section.table)))
        progress.show(f"page: {len(shown)} of {len(sections)} parts")
    swatches = {arm: swatch(mark) for arm, mark in (marks or {}).items()}
    text = _template().render(
        title=title, answer=answer, note=note, link=link, sections=shown, runs=runs or {}, swatches=swatches
    )
    return re.sub(r"[\0-\t\v-\x1f\x7f-\x9f]", lambda control: printable(control[0]), text)  # a terminal would obey them


@functools.cache
def swatch(mark: Mark) -> Markup:
    """An SVG element without text that shows the marker of `mark` in its colour, as matplotlib draws it."""
    style = MarkerStyle(mark.marker)
    words = []
    for vertices, code in style.get_path().transformed(style.get_transform()).iter_segments(simplify=False):
        points = " ".join(f"{x:.3f} {-y:.3f}" for x, y in vertices.reshape(-1, 2))
        words.append("Z" if code == Path.CLOSEPOLY else f"{SVG[code]}{points}")
    fill = re.sub(r"(fill): (.*)", themed, f"fill: {mark.colour}")
    body = Markup('<path d="{}" style="{}"/>').format(" ".join(words), fill)
    return Markup('<svg class="mark" viewBox="-.8 -.8 1.6 1.6" aria-hidden="true">{}</svg>').format(body)


def unbroken(text: str) -> Markup:
    """The text, escaped for HTML, with numbers such as 1e-4 that no browser breaks across lines at their sign."""
    return Markup(re.sub(r"\d[\d.]*e-\d+", r'<span class="number">\g<0></span>', str(escape(text))))


def _picture(section: Section) -> Picture | None:
    if section.figure is None:
        return None
    drawn = draw(section.figure, section.name)
    return Picture(Markup(drawn.svg), drawn.curves)


def _table(table: pd.DataFrame | None) -> tuple[list[str], list[list[str]]] | None:
    return None if table is None else cells(table)


@functools.cache
def _template() -> Template:
    loader = PackageLoader("analysis", "page")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["unbroken"] = unbroken
    return environment.get_template("page.html")
