"""Runs from W&B, in the form that run folders give: its offline files, merged over fragments, or a server through wandb.Api.

The only file of `analysis` that imports wandb, and the only one anywhere that reads with it.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from analysis.store import Record, Source, rows_table, table_of
from harness.config import recorded
from harness.errors import UserError

BLOCK = 32768
HEADER = struct.Struct("<IHB")
"""Of a piece of a record: crc32, length, kind (1 whole, 2 first, 3 middle, 4 last), as LevelDB's log has it."""


def cache(source: str) -> Path:
    """Where the rows of a W&B source are kept: the user's cache folder, as the source may lie elsewhere."""
    root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return root / "faultline" / f"{hashlib.sha256(source.encode()).hexdigest()[:16]}.parquet"


# --- offline files -----------------------------------------------------------------------------------------------------


def offline(root: Path) -> dict[str, Source]:
    """The runs whose `run-<id>.wandb` files lie anywhere below `root`, by id. Raises UserError when there is none."""
    fragments: dict[str, list[Path]] = defaultdict(list)
    for path in root.glob("**/*run-*/run-*.wandb"):
        fragments[path.stem.removeprefix("run-")].append(path)
    if not fragments:
        raise UserError(f"{root}: no offline W&B run below it; give the folder that holds wandb/offline-run-…, or one above")
    sources = {}
    for run, paths in sorted(fragments.items()):
        paths = sorted(paths, key=lambda path: path.parent.name.split("-")[-2])  # the name begins with the time of the start
        stats = [path.stat() for path in paths]
        signature = " ".join(f"{stat.st_size}:{stat.st_mtime_ns}" for stat in stats)
        sources[run] = Source(signature, partial(read_offline, run, paths))
    return sources


def read_offline(run: str, fragments: list[Path]) -> tuple[Record, pa.Table]:
    """One run of several fragments, in the order of their start; at equal steps the later one counts.

    A damaged file is read up to the damage, which stands in the record.
    """
    from wandb.proto.wandb_internal_pb2 import Record as Message  # type: ignore[attr-defined]  # made at import

    config: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    damage = []
    for path in fragments:
        data = path.read_bytes()
        end = 0
        for end, content in _records(data):  # noqa: B007 - where the last sound record ends
            message = Message.FromString(content)
            kind = message.WhichOneof("record_type")
            if kind == "history":
                row = _items(message.history.item)
                rows.append({"step": int(row.pop("_step")), **{k: v for k, v in row.items() if not k.startswith("_")}})
            elif kind == "summary":
                summary |= _items(message.summary.update)
            elif kind in ("run", "config"):
                update = message.run.config.update if kind == "run" else message.config.update
                config |= _items(update)
                summary |= _items(message.run.summary.update) if kind == "run" else {}
        if _damaged(data, end):
            damage.append(f"{path}: damaged, read up to byte {end} of {len(data)}")
    return _run(run, config, summary, rows, "; ".join(damage))


def _items(items: Any) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def _records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(end, content) of each record, up to the first piece that is short or fails its checksum."""
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
    """Whether anything but the zeros that fill a block follows the last sound record."""
    return bool(data[max(end, 7) :].strip(b"\0")) or not data.startswith(b":W&B")


# --- a server ----------------------------------------------------------------------------------------------------------


def server(path: str) -> dict[str, Source]:
    """The runs of `[entity/]project[:group]`, by id. Raises UserError when the server or the project cannot be read."""
    import wandb

    project, _, group = path.partition(":")
    try:
        runs = list(wandb.Api(timeout=30).runs(project, filters={"group": group} if group else None, per_page=100))
    except Exception as error:  # W&B raises its own kinds, requests' and ValueError
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UserError(f"wandb:{path}: {message}; check WANDB_BASE_URL, WANDB_API_KEY and the name") from None
    if not runs:
        raise UserError(f"wandb:{path}: no run in it; the form is wandb:[entity/]project[:group]")
    return {run.id: Source(f"{run.state}:{run.lastHistoryStep}", partial(read_server, run)) for run in runs}


def read_server(run: Any) -> tuple[Record, pa.Table]:
    """One run of a server; `scan_history` gives every row, where `history` would sample."""
    rows = [{"step": int(row["_step"]), **{k: v for k, v in row.items() if not k.startswith("_")}} for row in run.scan_history()]
    return _run(run.id, dict(run.config), {key: run.summary[key] for key in run.summary.keys()}, rows, "")  # noqa: SIM118


def _run(run: str, config: dict, summary: dict, rows: list[dict], damage: str) -> tuple[Record, pa.Table]:
    """A run as the harness mirrored it (harness/run/wandb.py)."""
    if "record" not in config:
        raise UserError(f"W&B run {run}: no config of this harness in it{'; ' + damage if damage else ''}")
    record = json.loads(config["record"])
    onsets = {key.removeprefix("onset/"): int(value) for key, value in summary.items() if key.startswith("onset/")}
    table = rows_table(table_of([{k: _number(v) for k, v in row.items()} for row in rows]), run)
    step = int(table["step"][-1].as_py()) if len(table) else 0
    state = summary.get("state", "running")  # without an end it runs still, or was killed
    state = "running" if state == "interrupted" else state
    error, metrics = summary.get("error", ""), table.column_names[2:]
    return Record(recorded(record["config"]), record["provenance"], state, step, error, onsets, metrics, damage), table


def _number(value: Any) -> Any:
    """W&B writes non-finite numbers as words."""
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value
