"""A sweep as tidy frames, from run folders, W&B's offline files or a W&B server alike. Never imports torch."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from algos.registry import RegistryError
from analysis import folders
from analysis.problems import problems
from analysis.store import Record, collect
from harness.arms import NONE, Arm, arms
from harness.collapse import outcome
from harness.errors import UserError
from harness.run.folder import FINISHED

OFFLINE, SERVER = "wandb-offline:", "wandb:"


class Sweep(NamedTuple):
    """name: of the sweep; folder: where its run folders lie, None for W&B. problems: what a reader must know before averaging,
    a sentence each.

    runs: a row per run (index: id): arm = precision, loss, correction and `setting` (any other key in which the runs differ);
    source of mismatch: the precision, an 8-bit cache, synthetic noise and the staleness if there are any; control: whether it is
    uncorrected and samples in the trainer's own precision; seed, state, error, step (the last
    recorded), onsets by detector; outcome collapsed | never learned | survived | unfinished, with onset, detector, cause;
    updates: optimizer steps of an RL step; time: optimizer steps until the collapse, or until the record ends; event: whether
    there was one (else the time is censored).
    steps: a row per run and step, a column per metric; a metric that a run did not record is NaN.
    """

    name: str
    folder: Path | None
    runs: pd.DataFrame
    steps: pd.DataFrame
    configs: dict[str, dict[str, Any]]
    provenance: dict[str, list[dict[str, Any]]]
    problems: list[str]


def load(source: Path | str, seeds: Collection[int] = ()) -> Sweep:
    """The runs of `source`, of these seeds if any are given: the folder of a sweep; `wandb-offline:FOLDER`, the offline files
    anywhere below it; or `wandb:[entity/]project[:group]` on a server. Raises UserError when there is no run that can be read."""
    text, folder = str(source), None
    if text.startswith((OFFLINE, SERVER)):
        from analysis import wandb_runs

        if text.startswith(OFFLINE):
            name, found = Path(text.removeprefix(OFFLINE)).resolve().name, wandb_runs.offline(Path(text.removeprefix(OFFLINE)))
        else:
            name, found = text.removeprefix(SERVER), wandb_runs.server(text.removeprefix(SERVER))
        cache = wandb_runs.cache(text)
    else:
        folder = Path(source)
        name, found = folder.resolve().name, folders.sources(folder)
        cache = folder / ".analysis" / "runs.parquet"
    records, table, unreadable = collect(found, cache)
    for run, record in list(records.items()):
        if said := _unknown_detector(record):
            unreadable[run] = said
            del records[run]
    if not records:
        raise UserError(f"{source}: no run in it can be read; {next(iter(unreadable.values()))}")
    if seeds:
        there = sorted({record.config["seed"] for record in records.values()})
        records = {run: record for run, record in records.items() if record.config["seed"] in seeds}
        if not records:
            asked = ", ".join(map(str, sorted(seeds)))
            raise UserError(f"{source}: no run has seed {asked}; it has {', '.join(map(str, there))}")
    configs = {run: record.config for run, record in records.items()}
    runs = _runs(source, records, arms(configs))
    steps = table.filter(pc.is_in(table["run"].cast(pa.string()), pa.array(records))).to_pandas(split_blocks=True)
    provenance = {run: record.provenance for run, record in records.items() if record.provenance}
    damaged = unreadable | {run: record.damage for run, record in records.items() if record.damage}
    metrics = {run: set(record.metrics) for run, record in records.items()}
    return Sweep(name, folder, runs, steps, configs, provenance, problems(runs, metrics, provenance, damaged))


def _runs(source: Path | str, records: dict[str, Record], named: dict[str, Arm]) -> pd.DataFrame:
    rows, seen = [], {}
    for run, record in records.items():
        actor, seed = record.config["actor"], record.config["seed"]
        updates = actor["num_minibatches"] * actor.get("epochs", 1)
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
                "source": _source(record.config),
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
    """Why the outcome of a run cannot be told here, or nothing."""
    try:
        outcome(record.onsets, record.config["collapse"]["detectors"])
    except RegistryError as error:
        return f"its outcome cannot be told: {error}; install the package of this detector"
    return ""


def _source(config: dict[str, Any]) -> str:
    rollout = config["rollout"]
    cache, stale = rollout.get("kv_cache", "compute"), rollout.get("staleness", 0)
    cached = [f"{cache} cache"] if cache != "compute" else []
    noise = [f"noise {rollout['engine']['noise']:g}"] if rollout["engine"].get("noise") else []
    aged = [f"{stale} step{'s' if stale > 1 else ''} stale"] if stale else []
    return ", ".join([rollout["precision"]["name"], *cached, *noise, *aged])


def _own_precision(config: dict[str, Any]) -> bool:
    """Whether a rollout differs from the trainer by its weights' age at most. Another engine computes 16 bit in ways of its own:
    that is a mismatch, where fp32 is none to speak of."""
    rollout, own = config["rollout"], config["actor"]["dtype"]
    same = rollout["precision"]["name"] == own and rollout.get("kv_cache", "compute") == "compute"
    return same and not rollout["engine"].get("noise") and (own == "fp32" or rollout["engine"]["name"] == "local")
