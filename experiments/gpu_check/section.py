"""Formatting of the checks' results as one Markdown section."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import torch

from analysis.frames import pipes
from harness.rollouts.vllm_support import installed
from harness.run.code_version import code_version


class Table(NamedTuple):
    """A table with a title. rows: dicts with the same keys, the columns. note: the meaning of the columns."""

    title: str
    note: str
    rows: list[dict[str, Any]]


def number(value: float) -> str:
    """A number with three significant digits, as a power of ten if it is very small or large."""
    return f"{value:.3g}"


def markdown(table: Table) -> str:
    """A table with its title and its note as Markdown."""
    body = pipes(list(table.rows[0]), [list(map(str, row.values())) for row in table.rows])
    return f"### {table.title}\n\n{table.note}\n\n{body}\n"


def section(tables: Iterable[Table], failures: dict[str, str], command: str) -> str:
    """The Markdown section: date, machine, versions and command, then every table, then the failed checks and why."""
    heading = f"## {device_name()}, {datetime.now(UTC):%Y-%m-%d}\n\n`{command}` at commit {commit()}; {versions()}.\n"
    failed = [f"- `{name}` failed: {reason}" for name, reason in failures.items()]
    return "\n".join([heading, *(markdown(table) for table in tables), *failed]).rstrip() + "\n"


def device_name() -> str:
    """The name of the GPU, or the CPU's architecture without a GPU."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {platform.machine()}"


def commit() -> str:
    """The first seven digits of the code's commit, with a plus sign if files differ from it."""
    code = code_version()
    return "unknown" if code["commit"] is None else code["commit"][:7] + ("+" if code["diff"] else "")


def versions() -> str:
    """Versions of the libraries on which the numbers depend."""
    names = {name: _version(name) for name in ("torch", "transformers", "deepspeed")}
    cuda = f", CUDA {torch.version.cuda}" if torch.version.cuda else ""
    return ", ".join(f"{name} {number}" for name, number in names.items()) + f"{cuda}, {installed() or 'no vLLM'}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
