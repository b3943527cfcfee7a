"""Estimation of the duration of runs, from the pace of earlier runs."""

from __future__ import annotations

import hashlib
import json
import statistics

from harness.config import Config
from harness.errors import UserError
from harness.run.folder import RunFolder
from sweeps.ledger import Sweep
from sweeps.progress import clock


def cost(config: Config) -> str:
    """Digest of the config keys that determine how long a step takes. Runs with equal digests take equal time per step."""
    parts = config.model_dump(mode="json", include={"model", "task", "rollout", "evaluation", "reduce"})
    return hashlib.sha256(json.dumps([parts, config.actor.num_minibatches], sort_keys=True).encode()).hexdigest()[:8]


def estimate(grid: dict[str, Config], todo: list[str]) -> str:
    """Say how many steps the runs `todo` have left, and how long they take at the pace of earlier runs of equal `cost`."""
    if not todo:
        return ""
    root = next(iter(grid.values())).path.parent.parent
    paces = _paces([Sweep(ledger.parent.parent) for ledger in root.glob("*/.sweep/ledger.jsonl")])
    costs = {run: cost(grid[run]) for run in todo}
    if not set(costs.values()) <= paces.keys():
        return "; time unknown: no finished run of this shape yet"
    left = {run: max(0, grid[run].steps - RunFolder(grid[run].path).checkpointed) for run in todo}
    seconds = sum(statistics.median(paces[key]) * left[run] for run, key in costs.items())
    earlier = sum(len(paces[key]) for key in set(costs.values()))
    return f"; {sum(left.values())} steps, {clock(seconds)} (minutes:seconds) of runs, by the pace of {earlier} earlier ones"


def _paces(sweeps: list[Sweep]) -> dict[str, list[float]]:
    """Seconds per step of every ended run, grouped by the digest (`cost`) of the keys that decide a step's duration."""
    paces: dict[str, list[float]] = {}
    for sweep in sweeps:
        costs: dict[str, str] = {}
        try:
            events = sweep.events()
        except UserError:  # an unreadable ledger of another sweep must not stop this launch
            continue
        for event in events:
            if event["event"] == "planned":
                costs[event["run"]] = str(event.get("cost", ""))
            elif event["event"] == "ended":
                steps, seconds = event.get("steps"), event.get("seconds")
                if isinstance(steps, int) and isinstance(seconds, int | float) and min(steps, seconds) > 0:
                    paces.setdefault(costs.get(event["run"], ""), []).append(seconds / steps)
    return paces
