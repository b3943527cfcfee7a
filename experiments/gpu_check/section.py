"""Formatting of the results of the GPU checks as one Markdown section."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import torch

from analysis.frames import pipes
from harness.run.provenance import provenance


class Table(NamedTuple):
    """A table with a title. rows: dicts that share their keys, the columns. note: explanation of the columns."""

    title: str
    note: str
    rows: list[dict[str, Any]]


class CheckFailed(RuntimeError):
    """A check found what the project says is impossible. tables: what it measured all the same."""

    def __init__(self, message: str, tables: list[Table]):
        super().__init__(message)
        self.tables = tables


def number(value: float) -> str:
    """A number as text with three significant digits; below 0.0001 and from 1,000 on with an exponent, such as 1.23e+03."""
    return f"{value:.3g}"


def markdown(table: Table) -> str:
    """A table with its title and its note as Markdown text."""
    body = pipes(list(table.rows[0]), [list(map(str, row.values())) for row in table.rows])
    return f"### {table.title}\n\n{table.note}\n\n{body}\n"


def section(tables: Iterable[Table], failures: dict[str, str], command: str) -> str:
    """Return the Markdown section: machine, date, command and versions, then every table, then the failed checks."""
    of = provenance()
    commit = "no commit" if of["commit"] is None else f"commit {of['commit'][:7]}{'+' if of['diff'] else ''}"
    versions = [f"{name} {of['packages'][name]}" for name in ("torch", "transformers", "deepspeed")]
    versions += [f"CUDA {torch.version.cuda}"] if torch.version.cuda else []
    made = ", ".join([*versions, of["packages"]["vllm"] or "no vLLM"])
    heading = f"## {of['device']}, {of['platform']}, {datetime.now(UTC):%Y-%m-%d}\n\n`{command}` at {commit}; {made}.\n"
    failed = [f"- `{name}` failed: {reason}" for name, reason in failures.items()]
    return "\n".join([heading, *(markdown(table) for table in tables), *failed]).rstrip() + "\n"
