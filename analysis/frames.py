"""How a DataFrame is shown: the labels and cells that an HTML page, a Markdown file and a terminal have in common."""

from __future__ import annotations

from typing import Any

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tabulate import tabulate

from analysis import labels

WIDTH = 170
"""Characters of a line where the output is no terminal."""


def cells(table: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """(labels of the columns, rows): numbers with three significant digits, – for a missing value."""
    return [labels.column(name) for name in table], [[_cell(value) for value in row] for row in table.itertuples(index=False)]


def _cell(value: Any) -> str:
    if not isinstance(value, str) and pd.isna(value):
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def markdown(table: pd.DataFrame) -> str:
    """As a Markdown table; a bar within a cell does not split it."""
    if table.empty:
        return "Nothing to list."
    head, rows = cells(table)
    head, *rows = ([cell.replace("|", r"\|") for cell in row] for row in (head, *rows))
    return tabulate(rows, head, tablefmt="pipe", disable_numparse=True)


def show(title: str, table: pd.DataFrame) -> None:
    """Print a table to the terminal; brackets in a cell are shown, not read as rich's markup."""
    head, rows = cells(table)
    shown = Table(title=escape(title), title_justify="left")
    for name in head:
        shown.add_column(escape(name), overflow="fold")
    for row in rows:
        shown.add_row(*map(escape, row))
    terminal().print(shown)


def terminal() -> Console:
    """Standard output, `WIDTH` wide where it is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)
