"""Runs of the trials of a search: submission, resubmission and scores."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable
from typing import NamedTuple

from scipy.stats import t as student

from harness.config import Config
from harness.run.folder import FINISHED
from sweeps.launch import plan
from sweeps.launchers.executor import Executor
from sweeps.launchers.squeue import NoAnswer
from sweeps.ledger import Sweep
from sweeps.states import RunState

RETRIES = 3
"""Number of times that a run is resubmitted after an external cause ended it. If it ends once more, its trial fails."""


class Score(NamedTuple):
    """Score of a trial: the mean over its seeds, its one-sided lower confidence bound, and the number of seeds."""

    mean: float
    bound: float
    seeds: int


class TrialRuns:
    """Submits the runs of a search's trials, and reads their states and scores. Call `refresh` before reading states."""

    def __init__(self, sweep: Sweep, executor: Executor):
        self.sweep, self.executor = sweep, executor
        self.states: dict[str, RunState] = {}
        self.live: set[str] = set()
        """Runs of the search's trials that were waiting or under way when states were last read."""
        self.retries: dict[str, int] = {}

    def refresh(self) -> bool:
        """Read the states of all runs, and which wait or are under way. If Slurm does not answer, print why and return False."""
        self.sweep.lock.check_there()
        try:
            self.states, self.live = self.executor.look()
        except NoAnswer as error:
            print(error, file=sys.stderr, flush=True)
            return False
        return True

    def submit(self, configs: Iterable[Config]) -> list[str]:
        """Submit the runs of `configs`, except finished, waiting and running ones. Returns the hashes of all, in their order."""
        grid = {config.digest: config for config in configs}
        plan(self.sweep, grid, self.sweep.states())
        if todo := [run for run in self.unfinished(grid) if run not in self.live]:
            self.executor.submit(todo)
        return list(grid)

    def submitted(self, runs: Iterable[str]) -> bool:
        """Whether all `runs` have been submitted. A controller that was killed may have left some out."""
        return all(run in self.states and self.states[run].state != "queued" for run in runs)

    def resubmit(self, runs: Iterable[str]) -> str | None:
        """Resubmit runs that ended by an external cause. Returns the error of a run that failed by its own error or too often."""
        unfinished = self.unfinished(runs)
        # A task with live runs may start the ended one again by itself; it is resubmitted once Slurm has released the task.
        ended = [run for run in unfinished if self.states[run].state in ("interrupted", "preempted", "cancelled")]
        stopped = [run for run in ended if run not in self.live]
        for run in unfinished:
            if self.states[run].state == "failed" or (run in stopped and self.retries.get(run, 0) == RETRIES):
                return f"{self.sweep.path / run}: {self.states[run].error}"
        for run in stopped:
            self.retries[run] = self.retries.get(run, 0) + 1
        if stopped:
            self.executor.submit(stopped)
        return None

    def forget_retries(self, runs: Iterable[str]) -> None:
        """Reset the retry counts of `runs`, since a later trial with equal parameters has the same runs."""
        for run in runs:
            self.retries.pop(run, None)

    def unfinished(self, runs: Iterable[str]) -> list[str]:
        """The runs in `runs` that are, by their folders, neither done nor collapsed."""
        return [run for run in runs if self.sweep.folder(run).state not in FINISHED]

    def collapsed(self, runs: Iterable[str]) -> int:
        """Number of runs in `runs` in which a detector saw a collapse."""
        return sum(any(event["kind"] == "collapse" for event in self.sweep.folder(run).events()) for run in runs)

    def evaluations(self, run: str) -> dict[int, float]:
        """Held-out reward of a run at each of its evaluations, by step."""
        return {int(row["step"]): row["eval/reward"] for row in self.sweep.folder(run).metrics() if "eval/reward" in row}

    def worst_seed(self, runs: list[str]) -> dict[int, float]:
        """Lowest held-out reward among the runs, by step, at the evaluated steps that all of them have reached."""
        tables = [self.evaluations(run) for run in runs]
        common = set.intersection(*(set(table) for table in tables))
        return {step: min(table[step] for table in tables) for step in sorted(common)}

    def score(self, runs: list[str], last: int, confidence: float) -> Score:
        """Score of a trial from its finished runs, see `lower_bound`. A run's value is the mean of its `last` evaluations."""
        values = [statistics.fmean(list(self.evaluations(run).values())[-last:]) for run in runs]
        return lower_bound(values, confidence)


def lower_bound(values: list[float], confidence: float) -> Score:
    """Score of n values: mean, and one-sided bound mean − t·s/√n. s: standard deviation. t: Student's `confidence` quantile."""
    n, mean = len(values), statistics.fmean(values)
    return Score(mean, mean - float(student.ppf(confidence, n - 1)) * statistics.stdev(values) / n**0.5, n)
