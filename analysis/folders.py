"""Runs from their folders."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.json as pj

from analysis.store import Record, Source, rows_table, table_of
from harness.config import recorded
from harness.errors import UserError
from harness.run.folder import RunFolder, changes, run_folders

FILES = ("config.json", "metrics.jsonl", "events.jsonl", "status.json", "provenance.json")

MADE = {"commit", "diff", "packages", "host", "device", "platform"}
"""What provenance.json says of each process."""


def sources(sweep: Path) -> dict[str, Source]:
    """The runs of a sweep's folder, by id. Folders without a config are among them, so that they are named as unreadable.

    Raises UserError when there is no run.
    """
    begun = {path.parent for name in FILES for path in sweep.glob(f"*/{name}")} - {f.path for f in run_folders(sweep)}
    folders = [*run_folders(sweep), *map(RunFolder, sorted(begun))]
    return {folder.path.name: Source(_signature(folder.path), partial(read, folder)) for folder in folders}


def read(folder: RunFolder) -> tuple[Record, pa.Table]:
    """One run. Raises UserError when its config is unreadable or no run's; other damage stands in the record."""
    values = folder.read("config.json")
    damage: list[str] = []
    try:
        config = recorded(values)
    except UserError as refusal:
        why = str(refusal).splitlines()[0]
        raise UserError(f"{folder.path}/config.json: no config of a run ({why}); move the folder away or run it again") from None

    def part(name: str) -> dict:
        try:
            return folder.read(name) if (folder.path / name).exists() else {}
        except UserError as refusal:
            damage.append(str(refusal).split("; ")[0])
            return {}

    onsets: dict[str, int] = {}
    for event in folder.events():  # a resumed run may record an event again; it is the same one
        if "detector" in event and "onset" not in event:
            damage.append(f"events.jsonl: {event['detector']} without its onset, left out")
        elif "detector" in event:
            onsets.setdefault(event["detector"], event["onset"])
    status, provenance = part("status.json"), part("provenance.json")
    rows = _rows(folder, damage)
    if len(rows) and not status:
        damage.append("status.json: missing or unreadable, so it is unknown whether the run ended")
    last = rows["step"][-1].as_py() if len(rows) else -1
    step = max(status.get("step", 0), last, 0)
    if last + 1 < step:
        damage.append(f"metrics.jsonl: ends before step {last + 1}, while the run went on to {step}")
    state, error = status.get("state", "queued"), status.get("error", "")
    metrics = rows.column_names[2:]
    known = [process for process in provenance.get("processes", []) if process.keys() >= MADE]
    if len(rows) and not known:
        damage.append("provenance.json: does not say which code made the run")
    processes = [{**process, "diff": changes(process["diff"])} for process in known]
    return Record(config, processes, state, step, error, onsets, metrics, "; ".join(damage)), rows


def _rows(folder: RunFolder, damage: list[str]) -> pa.Table:
    path = folder.path / "metrics.jsonl"
    if not path.exists() or not path.stat().st_size:
        return rows_table(pa.table({"step": pa.array([], pa.int64())}), folder.path.name)
    try:
        options = pj.ReadOptions(use_threads=False, block_size=path.stat().st_size + 1)
        rows = pj.read_json(path, read_options=options)
        if rows["step"].null_count or not pa.types.is_integer(rows["step"].type):
            raise pa.ArrowInvalid("a line without a step")
    except (pa.ArrowInvalid, KeyError):  # a line that a kill cut short: read line by line, the sound ones
        sound = folder.metrics()
        with path.open("rb") as file:
            lost = sum(1 for _ in file) - len(sound)
        if lost:
            damage.append(f"metrics.jsonl: {lost} of its lines unreadable or written again")
        rows = table_of(sound)
    return rows_table(rows, folder.path.name)


def _signature(folder: Path) -> str:
    parts = []
    for name in FILES:
        try:
            stat = os.stat(f"{folder}/{name}")
            parts.append(f"{stat.st_size}:{stat.st_mtime_ns}")
        except FileNotFoundError:
            parts.append("-")
    return " ".join(parts)
