"""Warnings to read before averaging over the runs of a sweep, such as damaged runs or missing seeds, one sentence each."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.labels import brief

OCCASIONAL = {"correction/used_length", "correction/dropped_length", "mismatch/pareto_k"}
"""Metrics that do not exist in every batch, so that a run may lack them without a warning."""
LISTED = 5
"""Maximum number of names of metrics, of runs or of groups of runs that one warning lists."""


def caveats(
    runs: pd.DataFrame, recorded: dict[str, set[str]], provenance: dict[str, list[dict[str, Any]]], damaged: dict[str, str]
) -> list[str]:
    """Warnings on damaged or unfinished runs, missing seeds, differing code, and metrics that only some runs recorded."""
    runs = runs.assign(arm=runs.arm.map(brief))
    return [
        *_damaged(damaged),
        *_unfinished(runs),
        *_seeds(runs),
        *_metrics(runs, recorded),
        *_code(runs, provenance),
    ]


def count(number: float, noun: str) -> str:
    """The number and its noun in the singular or plural, such as `1 run` or `2 runs`."""
    return f"{number:.0f} {noun}{'' if number == 1 else 's'}"


def has(number: float) -> str:
    """The verb for a number of things: `has` for one, `have` for any other number."""
    return "has" if number == 1 else "have"


def numbered(noun: str, numbers: Any) -> str:
    """The noun, in the singular or plural, with the sorted numbers: `seed 1` or `seeds 1, 2`."""
    numbers = sorted(numbers)
    return f"{noun}{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def _damaged(damaged: dict[str, str]) -> list[str]:
    """A sentence per kind of damage, with the runs that have it. damaged: the unreadable part of a run's record, by run id."""
    runs: dict[str, list[str]] = {}
    for run, what in damaged.items():
        runs.setdefault(what, []).append(run)
    return [f"Run{'' if len(by) == 1 else 's'} {_listed(by)}: {what}." for what, by in runs.items()]


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:LISTED])}{f' and {len(names) - LISTED} more' if len(names) > LISTED else ''}"


def _unfinished(runs: pd.DataFrame) -> list[str]:
    """Sentences on unfinished runs. Runs that have not begun are only counted, since a new sweep has many."""
    waiting = (runs.state == "queued") & (runs.step == 0)
    left = runs[~runs.state.isin(["done", "collapsed"]) & ~waiting]
    sentences = []
    if waiting.any():
        where = count(runs.arm[waiting].nunique(), "arm")
        sentences.append(f"{count(waiting.sum(), 'run')} in {where} {has(waiting.sum())} not begun.")
    for (arm, state, step, error), part in left.groupby(["arm", "state", "step", "error"], sort=False):
        until = "; the steps before count" if step else ""
        sentences.append(f"{arm} {numbered('seed', part.seed)}: {state} at step {step}{until}. {error}".strip())
    return sentences


def _seeds(runs: pd.DataFrame) -> list[str]:
    every, sentences = set(runs.seed), []
    lacking = pd.Series({arm: tuple(sorted(every - set(group.seed))) for arm, group in runs.groupby("arm", sort=False)})
    for seeds, arms in lacking[lacking.map(len) > 0].groupby(lacking):
        named = _listed(list(arms.index))
        which = f"{named} lacks" if len(arms) == 1 else f"{len(arms)} arms ({named}) lack"
        sentences.append(f"{which} {numbered('seed', seeds)}, which other arms have.")
    return sentences


def _metrics(runs: pd.DataFrame, recorded: dict[str, set[str]]) -> list[str]:
    """A sentence per run that lacks a metric recorded by a run alike but for the seed. Runs without any metric are skipped."""
    sentences = []
    for arm, group in runs.groupby("arm", sort=False):
        names = {run: recorded[run] - OCCASIONAL for run in group.index if recorded[run]}
        every = set().union(*names.values())
        for run, own in names.items():
            if lacking := sorted(every - own):
                seed = runs.seed[run]
                sentences.append(f"{arm} seed {seed} did not record {_listed(lacking)}, which other seeds of the arm did.")
    return sentences


def _code(runs: pd.DataFrame, provenance: dict[str, list[dict[str, Any]]]) -> list[str]:
    """A sentence on each package of which the runs used several versions, and one on the code if they used several."""
    used: dict[str, dict[str, set[str]]] = {"the code": {}}
    for run, processes in provenance.items():
        for process in processes:
            for what, release in {"the code": version(process), **process["packages"]}.items():
                used.setdefault(what, {}).setdefault(str(release), set()).add(run)
    return [f"The runs used {len(by)} versions of {what} ({_spread(runs, by)})." for what, by in used.items() if len(by) > 1]


def _spread(runs: pd.DataFrame, users: dict[str, set[str]]) -> str:
    parts = ((name, count(len(by), "run"), count(runs.arm[sorted(by)].nunique(), "arm")) for name, by in users.items())
    return "; ".join(f"{name}: {number} in {arms}" for name, number, arms in parts)


def version(process: dict[str, Any]) -> str:
    """Version of the code of a process that computed a run: its commit, with a short hash of its uncommitted changes."""
    changes = f" with uncommitted changes {process['diff']}" if process["diff"] else ""
    return f"{(process['commit'] or 'unknown')[:10]}{changes}"
