"""Reads the runs of a sweep from their folders, W&B's offline files or a W&B server. Never imports torch."""

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
from analysis.judged import judge
from analysis.results import Results
from analysis.sources import DOSE, is_control, source_of
from analysis.store import Record, RunSource, cache, collect
from harness.arms import Arm, arms
from harness.collapse import detect, outcome
from harness.config.trust import refuse_code
from harness.errors import UserError
from harness.room import bounded
from harness.run.folder import FINISHED

OFFLINE, SERVER = "wandb-offline:", "wandb:"


def load(source: Path | str, seeds: Collection[int] = (), *, deployed: str | None = None, trust: bool = False) -> Results:
    """Read the runs of a sweep, only those of `seeds` if any are given.

    source: the folder of a sweep; `wandb-offline:FOLDER`, W&B's offline files anywhere below it; or
    `wandb:[entity/]project[:group]` on a server. deployed: the policy to judge, one of judged.DEPLOYED; None for the one
    whose reward each run calls eval/reward. trust: whether to import a detector that a run names as `package.module:attribute`.
    Without trust such a run is left out, and a caveat names it. Raises UserError if no run can be read, if one did not evaluate
    the policy `deployed`, and if the metrics do not fit into memory.
    """
    with bounded(source):
        return _load(source, seeds, deployed, trust)


def _load(source: Path | str, seeds: Collection[int], deployed: str | None, trust: bool) -> Results:
    name, folder, sources = _source(str(source))
    records, table, unreadable = collect(sources, cache(str(folder.resolve() if folder else source)))
    unreadable |= {run: why for run, record in records.items() if (why := _no_outcome(record, trust))}
    records = {run: record for run, record in records.items() if run not in unreadable}
    if not records:
        raise UserError(f"{source}: no run in it can be read; {next(iter(unreadable.values()))}")
    named = arms({run: record.config for run, record in records.items()})  # of all seeds, so that no choice changes a name
    unreadable |= _twins(records, named)
    records = {run: record for run, record in records.items() if run not in unreadable}
    if seeds:
        there = sorted({record.config["seed"] for record in records.values()})
        records = {run: record for run, record in records.items() if record.config["seed"] in seeds}
        if not records:
            wanted = ", ".join(map(str, sorted(seeds)))
            raise UserError(f"{source}: no run has seed {wanted}; it has {', '.join(map(str, there))}")
    if len(records) < len(sources):  # otherwise filtering would only copy all rows
        table = table.filter(pc.is_in(table["run"].cast(pa.string()), pa.array(records)))
    steps = table.to_pandas(split_blocks=True)
    if deployed is not None:
        records, steps = judge(records, steps, deployed)
    return Results(
        name=name,
        folder=folder,
        runs=_runs(records, named),
        steps=steps,
        configs={run: record.config for run, record in records.items()},
        provenance={run: record.provenance for run, record in records.items() if record.provenance},
        recorded={run: set(record.metrics) for run, record in records.items()},
        deployed=deployed,
        damaged=unreadable | {run: record.damage for run, record in records.items() if record.damage},
    )


def _source(text: str) -> tuple[str, Path | None, dict[str, RunSource]]:
    """(Name of the sweep, its folder or None for W&B, `RunSource` of each run by id). text: the source, as `load` takes it."""
    if not text.startswith((OFFLINE, SERVER)):
        folder = Path(text)
        return folder.resolve().name, folder, folders.sources(folder)
    from analysis import wandb_runs

    if text.startswith(OFFLINE):
        root = Path(text.removeprefix(OFFLINE))
        return root.resolve().name, None, wandb_runs.offline(root)
    name = text.removeprefix(SERVER)
    return name, None, wandb_runs.server(name)


def _twins(records: dict[str, Record], named: dict[str, Arm]) -> dict[str, str]:
    """Reasons to leave out duplicate runs, by run id. A duplicate has the arm and seed of an earlier run, as a copy has."""
    first: dict[tuple[Arm, int], str] = {}
    left_out = {}
    for run, record in records.items():
        seed = record.config["seed"]
        if (twin := first.setdefault((named[run], seed), run)) != run:
            left_out[run] = f"left out, since {twin} is seed {seed} of {named[run]} too; move one of them away"
    return left_out


def _runs(records: dict[str, Record], named: dict[str, Arm]) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    calm = arms({run: record.config for run, record in records.items()}, DOSE)
    for run, record in records.items():
        actor, seed = record.config["actor"], record.config["seed"]
        updates = actor["num_minibatches"] * actor["epochs"]
        ended = outcome(record.onsets, record.config["collapse"]["detectors"])
        kind = ended.kind if record.state in FINISHED or ended.kind == "collapsed" else "unfinished"
        rows.append(
            {
                "run": run,
                "arm": str(named[run]),
                **named[run]._asdict(),
                "calm": calm[run].setting,
                "source": source_of(record.config),
                "control": is_control(record.config, named[run]),
                "seed": seed,
                "state": record.state,
                "error": record.error,
                "step": record.step,
            }
            | {"onsets": record.onsets, "outcome": kind, "event": kind == "collapsed", "updates": updates}
            | {"onset": ended.onset if kind == "collapsed" else np.nan, "detector": ended.detector, "cause": ended.cause}
        )
    runs = pd.DataFrame(rows).set_index("run")
    # Time counts completed steps, so a collapse in step 0 has time 1.
    return runs.assign(time=np.where(runs.event, runs.onset + 1, runs.step).astype(float) * runs.updates)


def _no_outcome(record: Record, trust: bool) -> str:
    """The reason why the outcome of a run cannot be determined here; "" if it can."""
    try:
        detectors = record.config["collapse"]["detectors"]
        if not trust:
            refuse_code({f"collapse.detectors.{name}": name for name in detectors}, "config.json")
        detect((), detectors)
    except RegistryError as error:
        return f"its outcome is unknown: {error}; install the package of this detector"
    except (UserError, ValueError) as error:
        return f"its outcome is unknown: {error}"
    return ""
