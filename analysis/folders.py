"""Reading the runs of a sweep from their folders, as records and tables of metrics. Records note any damage."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from analysis.records import Status, checked, onsets, processes
from analysis.store import Record, RunSource, rows_table, table_of
from harness.config import recorded
from harness.errors import UserError, first_line
from harness.run import jsonl
from harness.run.folder import LAST_STEP, RunFolder, changes, run_folders

BETWEEN = re.compile(rb"}\n{")
FILES = ("config.json", "metrics.jsonl", "events.jsonl", "status.json", "provenance.json")


def sources(sweep: Path) -> dict[str, RunSource]:
    """A `RunSource` for each run in a sweep's folder, even a damaged one, by run id. Raises UserError if there is no run."""
    begun = {path.parent for name in FILES for path in sweep.glob(f"*/{name}")} - {f.path for f in run_folders(sweep)}
    folders = [*run_folders(sweep), *map(RunFolder, sorted(begun))]
    return {folder.path.name: RunSource(_signature(folder.path), partial(read, folder)) for folder in folders}


def read(folder: RunFolder) -> tuple[Record, pa.Table]:
    """Read a run from its folder. Raises UserError if its config is unreadable; other damage is noted in the record."""
    values = folder.read("config.json")
    damage: list[str] = []
    try:
        config = recorded(values)
    except (UserError, RecursionError) as refusal:
        why = first_line(refusal)
        raise UserError(f"{folder.path}/config.json: no config that this version reads ({why}); move the folder away") from None
    status = checked(Status, _part(folder, "status.json", damage), "status.json", damage) or Status()
    events = _events(folder, damage)
    made = processes(_part(folder, "provenance.json", damage).get("processes"), "provenance.json", damage)
    rows = _rows(folder, damage)
    if len(rows) and not (folder.path / "status.json").exists():
        damage.append("status.json: missing, so it is unknown whether the run ended")
    if len(rows) and not made:
        damage.append("provenance.json: does not say which code made the run")
    last = rows["step"][-1].as_py() if len(rows) else -1
    step = max(status.step, last, 0)
    branched = [event["step"] for event in events if event.get("kind") == "branched"]
    damage += _missing(rows["step"].to_numpy(), next(iter(branched), 0), step, status.state == "done")
    return Record(
        config=config,
        provenance=[{**process.model_dump(), "diff": changes(process.diff)} for process in made],
        state=status.state,
        step=step,
        error=status.error,
        onsets=onsets((event for event in events if "detector" in event), config, "events.jsonl", damage),
        metrics=rows.column_names[2:],
        damage="; ".join(damage),
    ), rows


def _part(folder: RunFolder, name: str, damage: list[str]) -> dict[str, Any]:
    try:
        return folder.read(name) if (folder.path / name).exists() else {}
    except UserError as refusal:
        damage.append(str(refusal).split("; ")[0])
        return {}


def _events(folder: RunFolder, damage: list[str]) -> list[dict[str, Any]]:
    try:
        return folder.events()
    except UserError as refusal:
        damage.append(str(refusal))
        return []


def _missing(steps: np.ndarray, first: int, last: int, done: bool) -> list[str]:
    """Sentences on steps without a row in metrics.jsonl, from step `first` to `last`.

    steps: the steps that have a row. done: whether step `last` must have one, since the run has finished.
    """
    end = int(steps[-1]) if len(steps) else first - 1
    problems = []
    if lacking := end + 1 - first - int((steps >= first).sum()):
        problems.append(f"metrics.jsonl: {lacking} of the {end + 1 - first} rows up to step {end} are missing")
    if end < last - (not done):
        problems.append(f"metrics.jsonl: ends before step {end + 1}, while the run went on to {last}")
    return problems


def _rows(folder: RunFolder, damage: list[str]) -> pa.Table:
    path = folder.path / "metrics.jsonl"
    if not path.exists() or (path.is_file() and not path.stat().st_size):
        return rows_table(pa.table({"step": pa.array([], pa.int64())}), folder.path.name)
    try:
        content = jsonl.content(path)
        if not _flat(content):  # pyarrow ends the process on a row that is null and on endless nesting
            raise pa.ArrowInvalid("a row that is no flat object")
        options = pj.ReadOptions(use_threads=False, block_size=len(content) + 1)
        rows = pj.read_json(pa.BufferReader(content), read_options=options)
        if rows["step"].null_count or not pa.types.is_integer(rows["step"].type):
            raise pa.ArrowInvalid("a line without a step")
        if pc.min(rows["step"]).as_py() < 0 or pc.max(rows["step"]).as_py() > LAST_STEP:
            raise pa.ArrowInvalid("a step that no run has")
    except (pa.ArrowException, KeyError, OSError):  # a kill cut a line short: read the intact lines one by one
        try:
            sound = folder.metrics()
        except UserError as refusal:
            damage.append(str(refusal))
            return rows_table(table_of([], folder.path.name), folder.path.name)
        with path.open("rb") as file:
            lost = sum(1 for _ in file) - len(sound)
        if lost:
            damage.append(f"metrics.jsonl: {lost} of its lines unreadable or written again")
        rows = table_of(sound, folder.path.name)
    return rows_table(rows, folder.path.name)


def _flat(lines: bytes) -> bool:
    """Whether each of the `lines` of JSON is an object without nested objects or lists."""
    text = np.frombuffer(lines, np.uint8)
    opened, closed, ended = (np.count_nonzero(text == ord(sign)) for sign in "{}\n")  # bytes.count takes five times as long
    between = len(BETWEEN.findall(lines)) == ended - 1 and lines.startswith(b"{") and lines.endswith(b"}\n")
    return between and opened == closed == ended and b"[" not in lines


def _signature(folder: Path) -> str:
    parts = []
    for name in FILES:
        try:
            stat = os.stat(f"{folder}/{name}")
            parts.append(f"{stat.st_size}:{stat.st_mtime_ns}")
        except OSError as error:
            parts.append(f"{error.errno}")
    return " ".join(parts)
