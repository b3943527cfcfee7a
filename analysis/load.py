"""Run folders as data frames. Never imports torch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from harness.errors import UserError
from harness.records import RunFolder, arm_name, run_folders

OPERATION = ("run.", "tracking.", "checkpoint.", "dump.")
"""Keys that say how a run is operated: they change no result."""
NAMED = ("rollout.precision.name", "loss.name", "correction.weight.level", "correction.weight.action")
"""Keys that `arm_name` tells already."""


class Sweep(NamedTuple):
    """runs: a row per run (index: hash) with arm, seed, state, error, collapse onsets. steps: a row per run and step."""

    runs: pd.DataFrame
    steps: pd.DataFrame
    configs: dict[str, dict[str, Any]]
    provenance: dict[str, list[dict[str, Any]]]


def load(sweep: Path | str) -> Sweep:
    """The runs of a sweep. A metric that a run did not record is NaN. Raises UserError when there is no run folder."""
    folders = run_folders(sweep)
    configs = {folder.path.name: folder.read("config.json") for folder in folders}
    made = {folder.path.name: folder for folder in folders if (folder.path / "provenance.json").exists()}
    provenance = {name: folder.read("provenance.json")["processes"] for name, folder in made.items()}
    arms = _arms(configs)
    runs, steps = [], []
    for folder in folders:
        name = folder.path.name
        runs.append({"run": name, "arm": arms[name], "seed": configs[name]["seed"], **_outcome(folder)})
        steps.append(pd.DataFrame(folder.metrics()).assign(run=name, arm=arms[name], seed=configs[name]["seed"]))
    seen: dict[tuple, str] = {}
    for run in runs:
        twin = seen.setdefault((run["arm"], run["seed"]), run["run"])
        if twin != run["run"]:
            what = f"seed {run['seed']} of {run['arm']}"
            raise UserError(f"{sweep}: {twin} and {run['run']} are both {what}; move one of them away")
    return Sweep(pd.DataFrame(runs).set_index("run"), pd.concat(steps, ignore_index=True), configs, provenance)


def _outcome(folder: RunFolder) -> dict[str, Any]:
    status = folder.read("status.json") if (folder.path / "status.json").exists() else {"state": "queued"}
    onsets: dict[str, int] = {}
    for event in folder.events():  # a resumed run may record an event again; it is the same one
        if event["kind"] == "collapse":
            onsets.setdefault(event["detector"], event["onset"])
    return {"state": status["state"], "error": status.get("error", ""), "step": status.get("step", 0), "collapse": onsets}


def _arms(configs: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Names of arms: precision, loss, correction, and any other key in which the runs of the sweep differ."""
    flat = {run: flatten(config) for run, config in configs.items()}
    short = {run: arm_name(config, seed=False) for run, config in configs.items()}
    arm_keys = {key for values in flat.values() for key in values if not key.startswith(("seed", *OPERATION))}
    keys = sorted(arm_keys.difference(NAMED))
    everywhere = [key for key in keys if differs(key, flat.values())]
    names = {}
    for run, values in flat.items():
        # A key counts if runs of the same short name differ in it, or if it has nothing to do with what the name tells.
        same = [flat[other] for other in flat if short[other] == short[run]]
        told = [k for k in everywhere if differs(k, same) or not k.startswith(("rollout.precision.", "loss.", "correction."))]
        names[run] = " ".join([short[run], *(f"{key}={json.dumps(values[key])}" for key in told if key in values)])
    return names


def differs(key: str, configs: Iterable[dict[str, Any]]) -> bool:
    """Whether flattened configs disagree in `key`."""
    return len({json.dumps(values.get(key)) for values in configs}) > 1


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys joined by dots."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return flat
