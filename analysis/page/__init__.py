"""One HTML page that needs nothing else: no script, no network. Everything but the figures is escaped."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup
from matplotlib.figure import Figure

from analysis.figures.style import svg
from analysis.frames import cells


class Section(NamedTuple):
    """A heading and what stands below it, in this order: items as a list, the figure, the table, preformatted text, the note.

    anchor: name of the section in links. warning: whether it is marked. wrapped: whether the cells of the table break lines.
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


def page(
    title: str, answer: Sequence[str], sections: Sequence[Section], note: str = "", link: tuple[str, str] | None = None
) -> str:
    """The page: title, answer as a list of sentences, note with a link (anchor, words), then the sections."""
    shown = [(section, _svg(section.figure), _table(section.table)) for section in sections]
    return _template().render(title=title, answer=answer, note=note, link=link, sections=shown)


def _svg(figure: Figure | None) -> Markup:
    return Markup(svg(figure)) if figure is not None else Markup("")


def _table(table: pd.DataFrame | None) -> tuple[list[str], list[list[str]]] | None:
    return None if table is None else cells(table)


@functools.cache
def _template() -> Template:
    loader = PackageLoader("analysis", "page")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True).get_template("page.html")
