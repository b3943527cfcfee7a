"""Reading runs from W&B's offline files or a W&B server, as records like those of run folders."""

from __future__ import annotations

import struct
import zlib
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from analysis.records import Status, checked, onsets, processes
from analysis.store import Record, RunSource, rows_table, table_of
from harness.config import recorded
from harness.errors import UserError, first_line
from harness.run import jsonl
from harness.run.folder import LAST_STEP
from harness.run.jsonl import loads
from harness.run.wandb import REPORT

BLOCK = 32768
HEADER = struct.Struct("<IHB")
"""Header of a fragment in LevelDB's log format: crc32, length, kind (1 whole record, 2 first fragment, 3 middle, 4 last)."""


# --- offline files -----------------------------------------------------------------------------------------------------


def offline(root: Path) -> dict[str, RunSource]:
    """A `RunSource` for each run with a `run-<id>.wandb` anywhere below `root`, by id. Raises UserError if there is none."""
    fragments: dict[str, list[Path]] = defaultdict(list)
    for path in root.glob("**/*run-*/run-*.wandb"):
        if not path.stem.startswith(f"run-{REPORT}") and path.exists():
            fragments[path.stem.removeprefix("run-")].append(path)
    if not fragments:
        raise UserError(f"{root}: no offline W&B run below it; give the folder that holds wandb/offline-run-…, or one above")
    sources = {}
    for run, paths in sorted(fragments.items()):
        paths = sorted(paths, key=lambda path: path.parent.name.split("-")[-2])  # the name begins with the time of the start
        stats = [path.stat() for path in paths]
        signature = " ".join(f"{stat.st_size}:{stat.st_mtime_ns}" for stat in stats)
        sources[run] = RunSource(signature, partial(read_offline, run, paths))
    return sources


def read_offline(run: str, fragments: list[Path]) -> tuple[Record, pa.Table]:
    """Read one run from its offline files `fragments`, oldest first. A damaged file is read up to the damage."""
    from google.protobuf.message import DecodeError
    from wandb.proto.wandb_internal_pb2 import Record as Message  # type: ignore[attr-defined]  # made at import

    config: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    damage: list[str] = []
    for path in fragments:
        try:
            data = jsonl.content(path)
        except OSError as error:
            damage.append(f"{path}: unreadable ({error.strerror})")
            continue
        end, foreign = 0, 0
        for end, content in _records(data):  # noqa: B007 - where the last sound record ends
            try:
                message = Message.FromString(content)
                kind = message.WhichOneof("record_type")
                if kind == "history":
                    rows.append(_items(message.history.item))
                elif kind == "summary":
                    summary |= _items(message.summary.update)
                elif kind in ("run", "config"):
                    update = message.run.config.update if kind == "run" else message.config.update
                    config |= _items(update)
                    summary |= _items(message.run.summary.update) if kind == "run" else {}
            except (DecodeError, ValueError):
                foreign += 1
        if foreign:
            damage.append(f"{path}: {foreign} records are none of W&B's; left out")
        if _damaged(data, end):
            damage.append(f"{path}: damaged, read up to byte {end} of {len(data)}")
    return _run(run, config, summary, rows, damage)


def _items(items: Any) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): loads(item.value_json.encode()) for item in items}


def _records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (byte offset of its end, content) for each record of a W&B file, up to the first damaged fragment."""
    at = 7  # after W&B's header of 7 bytes
    pieces: list[bytes] = []
    while at + HEADER.size <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER.size:
            at += left  # the zeros that fill a block
            continue
        checksum, length, kind = HEADER.unpack_from(data, at)
        content = data[at + HEADER.size : at + HEADER.size + length]
        if not 1 <= kind <= 4 or len(content) < length or zlib.crc32(content, zlib.crc32(bytes([kind]))) != checksum:
            return
        at += HEADER.size + length
        pieces = [content] if kind in (1, 2) else [*pieces, content]
        if kind in (1, 4):
            yield at, b"".join(pieces)


def _damaged(data: bytes, end: int) -> bool:
    """Whether a W&B file has anything but padding zeros after `end`, the end of its last undamaged record."""
    return bool(data[max(end, 7) :].strip(b"\0")) or not data.startswith(b":W&B")


# --- a server ----------------------------------------------------------------------------------------------------------


def server(path: str) -> dict[str, RunSource]:
    """A `RunSource` for each run of `[entity/]project[:group]` on a W&B server, by id. Raises UserError if there is none."""
    import wandb

    project, _, group = path.partition(":")
    try:
        runs = list(wandb.Api(timeout=30).runs(project, filters={"group": group} if group else None, per_page=100))
    except Exception as error:  # W&B raises its own errors, those of requests, and ValueError
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UserError(f"wandb:{path}: {message}; check WANDB_BASE_URL, WANDB_API_KEY and the name") from None
    runs = [run for run in runs if not run.id.startswith(REPORT)]
    if not runs:
        raise UserError(f"wandb:{path}: no run in it; the form is wandb:[entity/]project[:group]")
    return {run.id: RunSource(f"{run.state}:{run.lastHistoryStep}", partial(read_server, run)) for run in runs}


def read_server(run: Any) -> tuple[Record, pa.Table]:
    """Read one run from a W&B server. `scan_history` gives every row, whereas `history` would sample."""
    summary = {key: run.summary[key] for key in run.summary.keys()}  # noqa: SIM118
    return _run(run.id, dict(run.config), summary, list(run.scan_history()), [])


def _run(
    run: str, config: dict[str, Any], summary: dict[str, Any], history: list[dict[str, Any]], damage: list[str]
) -> tuple[Record, pa.Table]:
    """The record and the metrics by step of a run that the harness mirrored to W&B (harness/run/wandb.py)."""
    try:
        record = loads(str(config["record"]).encode())
        values, made = recorded(dict(record["config"])), record["provenance"]
    except (KeyError, TypeError, ValueError, RecursionError, UserError) as error:
        why = "; ".join([first_line(error), *damage])
        raise UserError(f"W&B run {run}: no config of this harness in it ({why})") from None
    rows = [row for values in history if (row := _row(values))]
    if len(rows) < len(history):
        damage.append(f"{len(history) - len(rows)} of its rows have no step; left out")
    table = rows_table(table_of(rows, run), run)
    dated = {key.removeprefix("onset/"): value for key, value in summary.items() if key.startswith("onset/")}
    events = [{"detector": detector, "onset": onset} for detector, onset in dated.items()]
    # A run without an end is still running, or was killed.
    ended = {key: summary[key] for key in ("state", "error") if key in summary}
    status = checked(Status, {"state": "running", **ended}, "summary", damage) or Status(state="running")
    return Record(
        config=values,
        provenance=[process.model_dump() for process in processes(made, "provenance", damage)],
        state="running" if status.state == "interrupted" and not status.error else status.state,
        step=int(table["step"][-1].as_py()) if len(table) else 0,
        error=status.error,
        onsets=onsets(events, values, "summary", damage),
        metrics=table.column_names[2:],
        damage="; ".join(damage),
    ), table


def _row(values: dict[str, Any]) -> dict[str, Any] | None:
    """A row of W&B's history in the format of a row in a run's folder; None if it has no step."""
    step = values.get("_step")
    if not isinstance(step, int | float) or not (0 <= step <= LAST_STEP and step == int(step)):
        return None
    metrics = {key: _number(value) for key, value in values.items() if not key.startswith("_")}
    return metrics | {"step": int(step)}  # a forged metric may be named step


def _number(value: Any) -> Any:
    """A value of W&B as a float if it is a word such as "NaN", which W&B writes for a non-finite number; else unchanged."""
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value
