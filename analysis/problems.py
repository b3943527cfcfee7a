"""What a reader must know of a sweep before averaging over it, a sentence each."""

from __future__ import annotations

from typing import Any

import pandas as pd


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
    left = runs[~runs.state.isin(["done", "collapsed"])]
    until = {run: ", counted until there" if step else "" for run, step in left.step.items()}
    return [f"{r.arm} seed {r.seed}: {r.state} at step {r.step}{until[r.Index]}. {r.error}".strip() for r in left.itertuples()]


def _seeds(runs: pd.DataFrame) -> list[str]:
    every = set(runs.seed)
    lacking = {arm: sorted(every - set(group.seed)) for arm, group in runs.groupby("arm", sort=False)}
    return [f"{arm} has no seed {', '.join(map(str, seeds))}, which other arms have." for arm, seeds in lacking.items() if seeds]


def _schemas(runs: pd.DataFrame, metrics: dict[str, set[str]]) -> list[str]:
    """A loss may lack a metric; runs of one arm may not differ in theirs, unless a run recorded nothing yet."""
    told = []
    for arm, group in runs.groupby("arm", sort=False):
        recorded = {run: metrics[run] for run in group.index if metrics[run]}
        every = set().union(*recorded.values())
        for run, names in recorded.items():
            if lacking := sorted(every - names):
                shown = ", ".join(lacking[:5]) + (f" and {len(lacking) - 5} more" if len(lacking) > 5 else "")
                told.append(f"{arm} seed {runs.seed[run]} did not record {shown}, which other seeds of the arm have.")
    return told


def _code(runs: pd.DataFrame, provenance: dict[str, list[dict[str, Any]]]) -> list[str]:
    used: dict[str, set[str]] = {}
    for run, processes in provenance.items():
        for process in processes:
            used.setdefault(version(process), set()).add(run)
    if len(used) < 2:
        return []
    spread = "; ".join(f"{name}: {len(users)} runs in {runs.arm[sorted(users)].nunique()} arms" for name, users in used.items())
    return [f"The runs were made by {len(used)} versions of the code ({spread})."]


def version(process: dict[str, Any]) -> str:
    """Commit of a process, with a mark for uncommitted changes."""
    return f"{(process['commit'] or 'unknown')[:10]}{' with uncommitted changes' if process['diff'] else ''}"
