"""Run folders as data frames. Never imports torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from harness.records import RunFolder, arm_name, run_folders

NAMED = ("rollout.precision.", "loss.", "correction.", "seed", "run.", "tracking.", "checkpoint.")
"""Keys that an arm's name tells already, or that do not make an arm."""


class Sweep(NamedTuple):
    """runs: a row per run (index: hash) with arm, seed, state, error, collapse onsets. steps: a row per run and step."""

    runs: pd.DataFrame
    steps: pd.DataFrame
    configs: dict[str, dict[str, Any]]


def load(sweep: Path | str) -> Sweep:
    """The runs of a sweep. A metric that a run did not record is NaN. Raises UserError when there is no run folder."""
    folders = run_folders(sweep)
    configs = {folder.path.name: folder.read("config.json") for folder in folders}
    arms = _arms(configs)
    runs, steps = [], []
    for folder in folders:
        name = folder.path.name
        runs.append({"run": name, "arm": arms[name], "seed": configs[name]["seed"], **_outcome(folder)})
        steps.append(pd.DataFrame(folder.metrics()).assign(run=name, arm=arms[name], seed=configs[name]["seed"]))
    return Sweep(pd.DataFrame(runs).set_index("run"), pd.concat(steps, ignore_index=True), configs)


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
    keys = sorted({key for values in flat.values() for key in values if not key.startswith(NAMED)})
    varying = [key for key in keys if len({json.dumps(values.get(key)) for values in flat.values()}) > 1]
    bounds = [f"correction.weight.{side}" for side in ("lower", "upper")]
    # A bound is part of the name only where the sweep has several of them for one kind of weight.
    kinds: dict[str, set] = {}
    for run, config in configs.items():
        kinds.setdefault(arm_name(config, seed=False), set()).add(tuple(flat[run][key] for key in bounds))
    names = {}
    for run, config in configs.items():
        name = arm_name(config, seed=False)
        extra = bounds if len(kinds[name]) > 1 else []
        names[run] = " ".join([name, *(f"{key}={flat[run].get(key)}" for key in [*extra, *varying])])
    return names


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys joined by dots."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
