"""The record of each run and its rows (metrics by step), read from a folder, from W&B, or from a cache, an Arrow IPC file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.config import recorded
from harness.errors import UserError
from harness.files import replacing
from harness.progress import Progress
from harness.room import TooLarge, bounded

MOST = 1000
"""Maximum number of metrics of a run. Each becomes a column for all runs, and a forged run could fill the memory with them."""
VERSION = 5
"""Version of the layout of the cache of runs. A cache of another version is rebuilt."""


class Record(NamedTuple):
    """The record of a run, without its metrics by step. config: with all defaults filled in. onsets: step by detector.

    error: why the run failed. metrics: names that the run recorded. damage: description of the unreadable part of its record.
    """

    config: dict[str, Any]
    provenance: list[dict[str, Any]]
    state: str
    step: int
    error: str
    onsets: dict[str, int]
    metrics: list[str]
    damage: str


class RunSource(NamedTuple):
    """The source of one run. signature: changes with the run's data. read: returns (record, rows), or raises UserError."""

    signature: str
    read: Callable[[], tuple[Record, pa.Table]]


def cache(source: str) -> Path:
    """The cache file for the sweep `source`, in the user's cache folder, since a file in the sweep's folder may be forged."""
    root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return root / "faultline" / f"{hashlib.sha256(source.encode()).hexdigest()[:16]}.arrow"


def rows_table(rows: pa.Table, run: str) -> pa.Table:
    """A run's rows as an fp64 table by step. Of rows with equal steps the last counts. Raises UserError beyond MOST metrics."""
    step = rows["step"].to_numpy()
    if len(step) and not (np.diff(step) > 0).all():
        _, last = np.unique(step[::-1], return_index=True)
        rows = rows.take(len(step) - 1 - last)
    names = _few([name for name in rows.column_names if name not in ("step", "run")], run)  # a forged metric may be named run
    kinds = [rows.schema.field(name).type for name in names]
    numbers = {n: rows[n].cast(pa.float64()) for n, k in zip(names, kinds, strict=True) if pa.types.is_floating(k) or _whole(k)}
    label = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(rows), np.int32)), pa.array([run]))
    return pa.table({"run": label, "step": rows["step"].cast(pa.int64()), **numbers})


def table_of(rows: list[dict[str, Any]], run: str) -> pa.Table:
    """A run's rows as a table of numbers. A column that contains anything else is left empty."""
    columns: dict[str, Any] = {"step": pa.array([row["step"] for row in rows], pa.int64())}
    for name in _few(list(dict.fromkeys(name for row in rows for name in row if name != "step")), run):
        values = [row.get(name) for row in rows]
        number = all(value is None or isinstance(value, int | float) for value in values)
        columns[name] = pa.array(map(_number, values), pa.float64()) if number else pa.nulls(len(rows))
    return pa.table(columns)


def _few(names: list[str], run: str) -> list[str]:
    if len(names) > MOST:
        raise UserError(f"{run}: its rows have {len(names)} metrics, and no run records more than {MOST}; move the run away")
    return names


def _number(value: int | float | None) -> float | None:
    try:
        return None if value is None else float(value)
    except OverflowError:  # an integer larger than any float
        return None


def _whole(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_boolean(kind)


def collect(sources: dict[str, RunSource], cache: Path) -> tuple[dict[str, Record], pa.Table, dict[str, str]]:
    """Read all runs, unchanged ones from the file `cache`. Returns (records, rows of all readable runs, reasons why the other
    runs are unreadable), the records and the reasons by run id."""
    kept, table = _cached(cache, sources)
    missing = [run for run in sources if run not in kept]
    if not missing:
        return {run: kept[run] for run in sources}, table, {}
    parts, unreadable, progress = [table] if table is not None else [], {}, Progress(len(missing))
    for run, result in _read(sources, missing):
        if isinstance(result, UserError):
            unreadable[run] = str(result)
        else:
            kept[run] = result[0]
            parts.append(result[1])
        progress.show(f"reading runs: {len(kept) + len(unreadable)} of {len(sources)}")
    table = pa.concat_tables(parts, promote_options="default").unify_dictionaries() if parts else pa.table({})
    table = table.combine_chunks()  # whole columns need no copy to be read
    with suppress(OSError):  # a folder that cannot be written; the next reading is then as slow as this one
        _write(cache, {run: sources[run].signature for run in kept}, kept, table)
    return {run: kept[run] for run in sources if run in kept}, table, unreadable


def _read(sources: dict[str, RunSource], runs: list[str]) -> Iterator[tuple[str, Any]]:
    """Read runs in parallel; one that lacks memory is read again alone. Yields (run, its (record, rows) or a UserError)."""
    alone = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # parsing releases the interpreter's lock
        for run, result in zip(runs, pool.map(lambda run: _try(run, sources[run].read), runs), strict=True):
            if isinstance(result, TooLarge):
                alone.append(run)
            else:
                yield run, result
    for run in alone:
        yield run, _try(run, sources[run].read)


def _try(run: str, read: Callable[[], Any]) -> Any:
    try:
        with bounded(run):
            return read()
    except UserError as error:
        return error


def _cached(cache: Path, sources: dict[str, RunSource]) -> tuple[dict[str, Record], pa.Table | None]:
    try:
        table = pa.ipc.open_file(pa.memory_map(str(cache))).read_all()
        table.validate(full=True)
        meta = json.loads(table.schema.metadata[b"faultline"])
        if meta["version"] != VERSION:
            return {}, None
    except (OSError, pa.ArrowException, KeyError, ValueError, TypeError):
        return {}, None  # no cache yet, or one that a kill cut short: rebuild it from the record
    fits = {}
    for run, signature in meta["signatures"].items():
        if run in sources and sources[run].signature == signature:
            record = Record(*meta["records"][run])
            with suppress(UserError):  # an earlier version wrote the cache, and this one has other keys
                fits[run] = record._replace(config=recorded(record.config))
    if len(fits) < len(meta["signatures"]):
        table = table.filter(pc.is_in(table["run"].cast(pa.string()), pa.array(fits, pa.string())))
    return fits, table


def _write(cache: Path, signatures: dict[str, str], records: dict[str, Record], table: pa.Table) -> None:
    meta = json.dumps({"version": VERSION, "signatures": signatures, "records": records})
    cache.parent.mkdir(parents=True, exist_ok=True)
    # Nearly all floats differ, so parquet's encodings or compression would cost time and save no space.
    table = table.replace_schema_metadata({"faultline": meta})
    with (
        replacing(cache.parent, cache.name) as temporary,
        pa.OSFile(str(temporary), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table)
