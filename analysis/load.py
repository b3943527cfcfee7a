"""A sweep read from run folders, W&B's offline files or a W&B server. Never imports torch."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from algos.registry import RegistryError
from analysis import folders
from analysis.results import Results
from analysis.store import Record, Source, collect
from harness.arms import NONE, Arm, arms
from harness.collapse import outcome
from harness.errors import UserError
from harness.run.folder import FINISHED

OFFLINE, SERVER = "wandb-offline:", "wandb:"


def load(source: Path | str, seeds: Collection[int] = ()) -> Results:
    """The runs of a sweep, of `seeds` alone if any are given.

    source: the folder of a sweep; `wandb-offline:FOLDER`, W&B's offline files anywhere below it; or
    `wandb:[entity/]project[:group]` on a server. Raises UserError when no run can be read.
    """
    name, folder, found, cache = _source(str(source))
    records, table, unreadable = collect(found, cache)
    for run, record in list(records.items()):
        if why := _unknown_detector(record):
            unreadable[run] = why
            del records[run]
    if not records:
        raise UserError(f"{source}: no run in it can be read; {next(iter(unreadable.values()))}")
    named = arms({run: record.config for run, record in records.items()})  # of all seeds: some of them change no name
    if seeds:
        there = sorted({record.config["seed"] for record in records.values()})
        records = {run: record for run, record in records.items() if record.config["seed"] in seeds}
        if not records:
            wanted = ", ".join(map(str, sorted(seeds)))
            raise UserError(f"{source}: no run has seed {wanted}; it has {', '.join(map(str, there))}")
    return Results(
        name=name,
        folder=folder,
        runs=_runs(source, records, named),
        steps=table.filter(pc.is_in(table["run"].cast(pa.string()), pa.array(records))).to_pandas(split_blocks=True),
        configs={run: record.config for run, record in records.items()},
        provenance={run: record.provenance for run, record in records.items() if record.provenance},
        recorded={run: set(record.metrics) for run, record in records.items()},
        damaged=unreadable | {run: record.damage for run, record in records.items() if record.damage},
    )


def _source(text: str) -> tuple[str, Path | None, dict[str, Source], Path]:
    """(name of the sweep, its folder if it has one, its runs, where their rows are kept)."""
    if not text.startswith((OFFLINE, SERVER)):
        folder = Path(text)
        return folder.resolve().name, folder, folders.sources(folder), folder / ".analysis" / "runs.parquet"
    from analysis import wandb_runs

    if text.startswith(OFFLINE):
        root = Path(text.removeprefix(OFFLINE))
        return root.resolve().name, None, wandb_runs.offline(root), wandb_runs.cache(text)
    name = text.removeprefix(SERVER)
    return name, None, wandb_runs.server(name), wandb_runs.cache(text)


def _runs(source: Path | str, records: dict[str, Record], named: dict[str, Arm]) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    seen: dict[tuple[Arm, int], str] = {}
    for run, record in records.items():
        actor, seed = record.config["actor"], record.config["seed"]
        updates = actor["num_minibatches"] * actor["epochs"]
        twin = seen.setdefault((named[run], seed), run)
        if twin != run:
            what = f"seed {seed} of {named[run]}"
            raise UserError(f"{source}: {twin} and {run} are both {what}; move one of them away")
        ended = outcome(record.onsets, record.config["collapse"]["detectors"])
        kind = ended.kind if record.state in FINISHED or ended.kind == "collapsed" else "unfinished"
        rows.append(
            {
                "run": run,
                "arm": str(named[run]),
                **named[run]._asdict(),
                "source": _mismatch(record.config),
                "control": named[run].correction == NONE and _own_precision(record.config),
                "seed": seed,
                "state": record.state,
                "error": record.error,
                "step": record.step,
            }
            | {"onsets": record.onsets, "outcome": kind, "event": kind == "collapsed", "updates": updates}
            | {"onset": ended.onset if kind == "collapsed" else np.nan, "detector": ended.detector, "cause": ended.cause}
        )
    runs = pd.DataFrame(rows).set_index("run")
    # A collapse in the very first step has lived through it: the clock counts steps taken.
    return runs.assign(time=np.where(runs.event, runs.onset + 1, runs.step) * runs.updates)


def _unknown_detector(record: Record) -> str:
    """Why the outcome of a run cannot be told here, "" if it can."""
    try:
        outcome(record.onsets, record.config["collapse"]["detectors"])
    except RegistryError as error:
        return f"its outcome is unknown: {error}; install the package of this detector"
    return ""


def _mismatch(config: dict[str, Any]) -> str:
    """What makes rollouts differ from the trainer: precision, an 8-bit cache, noise, staleness."""
    rollout = config["rollout"]
    cache, stale = rollout["kv_cache"], rollout["staleness"]
    cached = [f"{cache} cache"] if cache != "compute" else []
    noise = [f"noise {rollout['engine']['noise']:g}"] if rollout["engine"].get("noise") else []
    aged = [f"{stale} step{'s' if stale > 1 else ''} stale"] if stale else []
    return ", ".join([rollout["precision"]["name"], *cached, *noise, *aged])


def _own_precision(config: dict[str, Any]) -> bool:
    """Whether a rollout differs from the trainer by the age of its weights at most.

    Another engine computes 16 bit by other kernels, which is a mismatch; in fp32 the difference is negligible.
    """
    rollout, own = config["rollout"], config["actor"]["dtype"]
    same = rollout["precision"]["name"] == own and rollout["kv_cache"] == "compute"
    return same and not rollout["engine"].get("noise") and (own == "fp32" or rollout["engine"]["name"] == "local")
