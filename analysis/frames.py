"""How a DataFrame is shown: the labels and cells that an HTML page, a Markdown file and a terminal have in common."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from analysis import labels

WIDTH = 170
"""Characters of a line where the output is no terminal."""

FITTING = 120
"""Characters of a line of Markdown up to which the columns of a table are padded."""


def cells(table: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """(labels of the columns, rows): numbers with three significant digits, – for a missing value."""
    return [labels.column(name) for name in table], [[_cell(value) for value in row] for row in table.itertuples(index=False)]


def _cell(value: Any) -> str:
    if not isinstance(value, str) and pd.isna(value):
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def markdown(table: pd.DataFrame) -> str:
    """A table in Markdown; a bar within a cell does not split it."""
    if table.empty:
        return "Nothing to list."
    head, rows = cells(table)
    return pipes(head, rows)


def pipes(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table whose bars stand below each other where a line then fits; a bar within a cell does not split it."""
    lines = [[plain(cell).replace("|", r"\|") for cell in row] for row in (head, *rows)]
    widths = [max(len(name) + 2, *map(len, column)) for name, *column in zip(*lines, strict=True)]
    if sum(width + 3 for width in widths) + 1 > FITTING:
        widths = [0] * len(widths)
    text = ["".join(f"| {cell:{width}} " for cell, width in zip(line, widths, strict=True)) for line in lines]
    text.insert(1, "".join(f"|:{'-' * (width + 1)}" for width in widths))
    return "\n".join(f"{line}|" for line in text)


def plain(text: str) -> str:
    """A text for Markdown in which no HTML is left: a name in a run may hold a tag."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)


def show(title: str, table: pd.DataFrame) -> None:
    """Print a title and a table to the terminal; brackets in a cell are shown, not read as rich's markup."""
    head, rows = cells(table)
    shown = Table()
    for name in head:
        shown.add_column(escape(name), overflow="fold")
    for row in rows:
        shown.add_row(*map(escape, row))
    console = terminal()
    console.print(title, style="italic", markup=False, highlight=False)  # the table's own would wrap at the table's width
    console.print(shown)


def terminal() -> Console:
    """Standard output, `WIDTH` wide where it is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)
