"""What a reader must know of a sweep before averaging over it, a sentence each."""

from __future__ import annotations

from typing import Any

import pandas as pd

OCCASIONAL = {"correction/used_length", "correction/dropped_length", "mismatch/pareto_k"}
"""Metrics that do not exist in every batch: a run may lack them for good reasons."""


def problems(
    runs: pd.DataFrame, metrics: dict[str, set[str]], provenance: dict[str, list[dict[str, Any]]], damaged: dict[str, str]
) -> list[str]:
    """Damaged and unfinished runs, missing seeds, metrics that only some runs of an arm have, and code that differs."""
    return [
        *(f"Run {run}: {what}." for run, what in damaged.items()),
        *_unfinished(runs),
        *_seeds(runs),
        *_schemas(runs, metrics),
        *_code(runs, provenance),
    ]


def _unfinished(runs: pd.DataFrame) -> list[str]:
    """Of runs that have not begun only how many: in a sweep under way they are most."""
    waiting = (runs.state == "queued") & (runs.step == 0)
    left = runs[~runs.state.isin(["done", "collapsed"]) & ~waiting]
    told = [f"{waiting.sum()} runs in {runs.arm[waiting].nunique()} arms have not begun."] if waiting.any() else []
    for (arm, state, step, error), part in left.groupby(["arm", "state", "step", "error"], sort=False):
        seeds = f"seed{'s' if len(part) > 1 else ''} {', '.join(map(str, sorted(part.seed)))}"
        told.append(f"{arm} {seeds}: {state} at step {step}{', counted until there' if step else ''}. {error}".strip())
    return told


def _seeds(runs: pd.DataFrame) -> list[str]:
    every, told = set(runs.seed), []
    lacking = pd.Series({arm: tuple(sorted(every - set(group.seed))) for arm, group in runs.groupby("arm", sort=False)})
    for seeds, arms in lacking[lacking.map(len) > 0].groupby(lacking):
        which = f"{arms.index[0]} has" if len(arms) == 1 else f"{len(arms)} arms ({', '.join(arms.index)}) have"
        told.append(f"{which} no seed {', '.join(map(str, seeds))}, which other arms have.")
    return told


def _schemas(runs: pd.DataFrame, metrics: dict[str, set[str]]) -> list[str]:
    """A loss may lack a metric; runs of one arm may not differ in theirs, unless a run recorded nothing yet."""
    told = []
    for arm, group in runs.groupby("arm", sort=False):
        recorded = {run: metrics[run] - OCCASIONAL for run in group.index if metrics[run]}
        every = set().union(*recorded.values())
        for run, names in recorded.items():
            if lacking := sorted(every - names):
                shown = ", ".join(lacking[:5]) + (f" and {len(lacking) - 5} more" if len(lacking) > 5 else "")
                told.append(f"{arm} seed {runs.seed[run]} did not record {shown}, which other seeds of the arm have.")
    return told


def _code(runs: pd.DataFrame, provenance: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Commits and packages; a run that was resumed under another counts for both."""
    used: dict[str, dict[str, set[str]]] = {"the code": {}}
    for run, processes in provenance.items():
        for process in processes:
            for what, found in {"the code": version(process), **process["packages"]}.items():
                used.setdefault(what, {}).setdefault(str(found), set()).add(run)
    return [
        f"The runs were made by {len(by)} versions of {what} ({_spread(runs, by)})." for what, by in used.items() if len(by) > 1
    ]


def _spread(runs: pd.DataFrame, users: dict[str, set[str]]) -> str:
    return "; ".join(f"{name}: {len(by)} runs in {runs.arm[sorted(by)].nunique()} arms" for name, by in users.items())


def version(process: dict[str, Any]) -> str:
    """Commit of a process, with a short hash of its uncommitted changes: two kinds of changes are two versions."""
    changes = f" with uncommitted changes {process['diff']}" if process["diff"] else ""
    return f"{(process['commit'] or 'unknown')[:10]}{changes}"
