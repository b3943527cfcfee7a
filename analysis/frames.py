"""Formatting of a DataFrame for an HTML page, a Markdown file, a CSV file or a terminal."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from analysis import labels
from harness.errors import printable

WIDTH = 170
"""Width of the output in characters if it is not a terminal."""

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""First characters of a cell that a spreadsheet may run as a formula, such as `=HYPERLINK(...)` (OWASP, CSV injection)."""

FITTING = 120
"""Maximum length of a Markdown table's lines for which its columns are padded to equal widths."""


def cells(table: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """A table as strings: (labels of the columns, cells of each row). Floats get three significant digits, missing values a –."""
    return [labels.column(name) for name in table], [[_cell(value) for value in row] for row in table.itertuples(index=False)]


def _cell(value: Any) -> str:
    if not isinstance(value, str) and pd.isna(value):
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def markdown(table: pd.DataFrame) -> str:
    """A DataFrame as a Markdown table. A bar within a cell is escaped."""
    if table.empty:
        return "Nothing to list."
    head, rows = cells(table)
    return pipes(head, rows)


def pipes(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table of `head` and `rows`, with aligned columns if the lines stay short enough. A bar in a cell is escaped."""
    lines = [[plain(cell).replace("|", r"\|") for cell in row] for row in (head, *rows)]
    widths = [max(len(name) + 2, *map(len, column)) for name, *column in zip(*lines, strict=True)]
    if sum(width + 3 for width in widths) + 1 > FITTING:
        widths = [0] * len(widths)
    text = ["".join(f"| {cell:{width}} " for cell, width in zip(line, widths, strict=True)) for line in lines]
    text.insert(1, "".join(f"|:{'-' * (width + 1)}" for width in widths))
    return "\n".join(f"{line}|" for line in text)


def plain(text: str) -> str:
    """A string made safe for Markdown: HTML and control characters, which a run's names may contain, are escaped."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", printable(text))


def csv(table: pd.DataFrame, index: bool = False) -> str:
    """A table as CSV that is safe to open: cells that begin like a formula get an apostrophe, control characters are escaped."""
    safe = table.rename(columns=_inert)
    texts = [place for place, kind in enumerate(safe.dtypes) if not pd.api.types.is_numeric_dtype(kind)]
    for place in texts:
        column = safe.iloc[:, place].astype(object)
        safe.isetitem(place, column.map({value: _inert(value) for value in column.unique()}))
    return (safe.rename(index=_inert) if index else safe).to_csv(index=index)


def _inert(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return f"'{printable(value)}" if value.startswith(FORMULA) else printable(value)


def show(title: str, table: pd.DataFrame) -> None:
    """Print a title and a table to the terminal. Control characters and rich's markup in them are printed literally."""
    head, rows = cells(table)
    shown = Table()
    for name in head:
        shown.add_column(escape(printable(name)), overflow="fold")
    for row in rows:
        shown.add_row(*(escape(printable(cell)) for cell in row))
    console = terminal()
    console.print(printable(title), style="italic", markup=False, highlight=False)  # a title of the table wraps at its width
    console.print(shown)


def terminal() -> Console:
    """A rich console on the standard output, `WIDTH` characters wide if the output is not a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)
