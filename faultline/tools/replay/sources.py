"""Read a dump of any supported program in pieces, check its rows, and divide it into training batches."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from faultline.tools.replay import readers
from harness.dumps import files
from harness.dumps.schema import DumpedResponses, Problem, absent, problems, responses
from harness.errors import UserError
from harness.room import bounded

SUFFIXES = (".parquet", ".jsonl", ".pkl", ".pt")
SHOWN = 10
"""Maximum number of bad rows that an error lists."""
FILL = -1e3
"""Lowest log-probability of a sampled token, in nats. A lower value, such as -1e9, is a placeholder for a masked token."""
LOWEST = -1e9
"""Lowest log-probability that is read, in nats. Lower values are raised to it, so that sums over a dump stay finite."""


class Dump:
    """The training batches of a dump. path: a file, a folder of files, or a run folder.

    skip_bad: leave bad rows out and count them in `bad`. Otherwise a UserError lists them by row and column. `read`: bytes of
    the files that have been read to their end. `fills`: tokens on the mask with a log-probability below FILL.
    """

    def __init__(self, path: Path, *, skip_bad: bool = False):
        self.path, self.skip_bad = path, skip_bad
        self.files = _files(path)
        self.rows, self.bad, self.read, self.fills = 0, 0, 0, 0

    def check(self) -> None:
        """Raise UserError if the first rows cannot be used. Files of tensors are left to `batches`, since torch reads them."""
        if self.files[0].suffix in (".jsonl", ".parquet"):
            with bounded(self.path):
                next(self.tables(), None)

    def batches(self) -> Iterator[DumpedResponses]:
        """Yield batches: adjacent rows of a step or, without steps, a file or row group. Raises UserError if no row is valid."""
        self.rows, self.bad, self.read, self.fills = 0, 0, 0, 0
        pending: list[pa.Table] = []
        for table in self.tables():
            for part in _by_step(table):
                if pending and not (_step(part) is not None and _step(part) == _step(pending[0])):
                    yield self._batch(pending)
                    pending = []
                pending.append(part)
        if pending:
            yield self._batch(pending)
        if self.rows == self.bad:
            raise UserError(f"{self.path}: no sound row among {self.rows}")

    def _batch(self, tables: list[pa.Table]) -> DumpedResponses:
        """Convert the tables of one batch to responses. Raise log-probabilities to at least LOWEST; count those below FILL."""
        joined = _joined(tables)
        old, rollout = joined.logp_old, joined.logp_rollout
        self.fills += int((joined.mask & ((old < FILL) | (rollout < FILL))).sum())
        bounded = {"logp_old": np.maximum(old, LOWEST), "logp_rollout": np.maximum(rollout, LOWEST)}
        return DumpedResponses(**joined._asdict() | bounded)  # `_replace` asks for the length, which is the number of responses

    def tables(self) -> Iterator[pa.Table]:
        """Yield the valid rows of each file or row group."""
        for path in self.files:
            start = 0
            for table, unreadable in _read(path):
                self.rows += len(table)
                sound = self._sound(path, table, unreadable, start)
                start += len(table)
                if len(sound):
                    yield sound
            self.read += path.stat().st_size

    def _sound(self, path: Path, table: pa.Table, unreadable: list[Problem], start: int) -> pa.Table:
        """Return the valid rows of a table. unreadable: problems found in reading. start: row number of the table in the file.

        Raises UserError on an invalid row unless `skip_bad`, and on a missing column.
        """
        rows = {problem.row for problem in unreadable}
        if len(rows) < len(table) and (missing := absent(table.column_names)):
            have = ", ".join(table.column_names) or "none of them"
            raise UserError(f"{path}: no column {' and '.join(missing)} (found {have}); docs/dumps.md lists what a dump holds")
        every = unreadable
        if len(rows) < len(table):
            every = sorted([*unreadable, *(problem for problem in problems(table) if problem.row not in rows)])
        bad = np.zeros(len(table), dtype=bool)
        bad[[problem.row for problem in every]] = True
        self.bad += int(bad.sum())
        if every and not self.skip_bad:
            lines = [f"{path}, {_placed(problem, start, path.suffix)}" for problem in every[:SHOWN]]
            more = [f"and {len(every) - SHOWN} more"] if len(every) > SHOWN else []
            raise UserError("\n".join([*lines, *more, "--skip-bad leaves such rows out and counts them"]))
        return table.filter(pa.array(~bad)) if bad.any() else table


def _placed(problem: Problem, start: int, suffix: str) -> str:
    """The problem with its place in the file: the line, as editors count, or else the row. start: row number of the table."""
    row = start + problem.row
    return f"line {row + 1}, column {problem.column}: {problem.what}" if suffix == ".jsonl" else str(problem._replace(row=row))


def _read(path: Path) -> Iterator[tuple[pa.Table, list[Problem]]]:
    match path.suffix:
        case ".parquet":
            yield from ((table, []) for table in files.read(path, readers.PARQUET))
        case ".jsonl":
            yield from readers.read_jsonl(path)
        case ".pkl":
            yield readers.tabulated(path, readers.read_skyrl(path))
        case _:
            yield readers.tabulated(path, readers.read_tensors(path))


def _files(path: Path) -> list[Path]:
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise UserError(f"{path}: cannot tell what it is by {path.suffix or 'no suffix'}; accepted are {', '.join(SUFFIXES)}")
        return [path]
    if not path.exists():
        raise UserError(f"{path}: no such file or folder; docs/replay.md says how to write a dump, --example shows a shipped one")
    folder = path / "dumps" if (path / "dumps").is_dir() else path
    if runs := [config.parent for config in sorted(path.glob("*/config.json"))]:
        one = next((run for run in runs if (run / "dumps").is_dir()), runs[0])
        raise UserError(f"{path}: a sweep; give one of its runs, as {one}")
    named = (f for f in folder.rglob("*") if f.suffix in SUFFIXES and not f.name.startswith("."))
    dumps = sorted((f for f in named if f.is_file()), key=_natural)
    if (path / "config.json").exists() and folder == path:
        raise UserError(f"{path}: this run wrote no dumps; set dump.every=<steps> and run it again in another sweep")
    if not dumps:
        raise UserError(f"{path}: no dump there; give a file ({', '.join(SUFFIXES)}), a folder of them, or a run folder")
    return dumps


def _natural(path: Path) -> list[tuple[bool, int | str]]:
    """Sort key of paths that places step-9 before step-10."""
    return [(not part.isdigit(), int(part) if part.isdigit() else part) for part in re.split(r"(\d+)", str(path)) if part]


def _by_step(table: pa.Table) -> Iterator[pa.Table]:
    if "step" not in table.column_names or table["step"].null_count:
        yield table
        return
    steps = table["step"].to_numpy()
    starts = np.flatnonzero(np.diff(steps, prepend=steps[0] - 1))
    for start, end in zip(starts, [*starts[1:], len(table)], strict=True):
        yield table.slice(start, end - start)


def _step(table: pa.Table) -> int | None:
    if "step" not in table.column_names or table["step"].null_count:
        return None
    return table["step"][0].as_py()


def _joined(tables: list[pa.Table]) -> DumpedResponses:
    """Join the tables of one batch. A column that any table lacks is left out; without a mask all tokens count."""
    shared = set.intersection(*(set(table.column_names) for table in tables)) | {"mask"}
    tables = [table.select([name for name in table.column_names if name in shared]) for table in tables]
    return responses(pa.concat_tables(tables, promote_options="permissive"))
