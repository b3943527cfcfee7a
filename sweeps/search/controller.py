"""The controller of a search: it asks Optuna for trials, runs them, and reports their results. It may be killed at any time.

The runs of a trial follow from its parameters, so a new controller finds them in the sweep's log. It adopts every
trial that Optuna's journal lists as running. Only the controller writes this journal.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, Trial, TrialState

from harness.config import Config
from harness.errors import UserError
from harness.files import writing
from sweeps.launch import enter_missing_ends, wait_for_all
from sweeps.launchers.executor import Executor
from sweeps.launchers.local import Local
from sweeps.launchers.options import SlurmOptions
from sweeps.launchers.slurm import Slurm
from sweeps.ledger import Sweep
from sweeps.progress import clock
from sweeps.search.sections import Point, Step, next_step
from sweeps.search.spec import Spec, load
from sweeps.search.study import free_seed, importance, open_study
from sweeps.search.trial_runs import Score, TrialRuns

POLL = 2.0
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)
FRESH = 1000
"""First seed with which the best trial's parameters are run again. The search itself uses lower seeds."""


def search(path: Path, changes: list[str]) -> dict[str, Any]:
    """Run or continue the search specified in the file `path`. changes: key=value edits of the spec. Returns its result."""
    spec = load(path, changes)
    return Controller(spec, Sweep(Path(spec.root) / spec.name)).run()


class Controller:
    """Controller of one search: runs the trials of `spec` in the folder of `sweep`."""

    study: optuna.Study
    began: tuple[float, int]
    """Monotonic time, in seconds, at which this process began to search, and the number of trials that had ended by then."""

    def __init__(self, spec: Spec, sweep: Sweep):
        self.spec, self.sweep = spec, sweep
        self.executor: Executor
        if isinstance(spec.launcher, str):
            self.executor = Local(sweep)
        else:
            options = SlurmOptions(**spec.launcher)
            options.check()
            self.executor = Slurm(sweep, options)
        self.runs = TrialRuns(sweep, self.executor)

    def run(self) -> dict[str, Any]:
        """Search to the end, then run the winner on fresh seeds. Returns the result and writes it to `search.json`."""
        with self.executor.attached():
            self._check_space()
            return self._search()

    def _search(self) -> dict[str, Any]:
        with self.sweep.lock.hold(), writing(self.sweep.home):
            self.sweep.write("launcher.json", self.executor.prepare())
            self._check_spec()
            self.study = open_study(self.sweep, self.spec)
            self._fail_incomplete_trials()
            self.began = time.monotonic(), len(self._ended())
            while self._advance():
                self._wait()
            result = self._result()
            # A run's folder says that it has finished before its process has ended, or after its launcher was killed.
            enter_missing_ends(self.sweep, wait_for_all(self.executor, ()))
            self.sweep.write("search.json", result)
            return result

    def _wait(self) -> None:
        self.executor.wait(POLL)
        if self.executor.stopped:
            raise UserError(f"{self.sweep.path}: a run was stopped by a signal, and the others with it; the same command goes on")

    # --- trials --------------------------------------------------------------------------------------------------------

    def _advance(self) -> bool:
        """Update every running trial, then start more while there is room. Returns False when the search is over."""
        trials = self.study.get_trials(deepcopy=False)
        running = [trial for trial in trials if trial.state == TrialState.RUNNING]
        if not self.runs.refresh():
            return True
        for trial in running:
            self._update_trial(trial)
        self._check_failures(trials)
        upcoming = self._next_params(trials)
        for params in upcoming[: max(0, self.spec.parallel - len(running))]:
            if params and not any(trial.state == TrialState.WAITING for trial in self.study.get_trials(deepcopy=False)):
                self.study.enqueue_trial(params)  # a waiting one is of a controller that was killed here
            self._begin_trial(self.study.ask(self.spec.distributions))
        return bool(running or upcoming)

    def _next_params(self, trials: list[FrozenTrial]) -> list[dict[str, Any]]:
        """Parameters of the trials to start next, a dictionary per trial. For an empty dictionary Optuna chooses them."""
        ended = [trial for trial in trials if trial.state in ENDED]
        running = [trial for trial in trials if trial.state == TrialState.RUNNING]
        room = self.spec.trials - len(ended) - len(running)
        if not self.spec.sections:
            return [{}] * room
        name = next(iter(self.spec.distributions))
        # The points of a round follow from the trials that ended before it, so a round lasts until all have ended.
        tries = [] if running else self._next_step(ended).tries
        return [{name: number} for number in tries][:room]

    def _next_step(self, ended: list[FrozenTrial]) -> Step:
        sections = self.spec.sections
        assert sections is not None
        name = next(iter(self.spec.distributions))
        points = [Point(trial.params[name], trial.user_attrs["collapsed"], trial.user_attrs["seeds"]) for trial in ended]
        ends = self.spec.section_ends()
        return next_step(points, *ends, sections.points, sections.tolerance, sections.boundary_seeds)

    def _begin_trial(self, trial: Trial) -> None:
        values = self.spec.values(trial.params)
        for key, value in values.items():
            trial.set_user_attr(key, value)
        if "first_seed" not in trial.user_attrs:
            others = [other for other in self.study.get_trials(deepcopy=False) if other.number != trial.number]
            trial.set_user_attr("first_seed", free_seed(others, trial.params, self.spec.seeds))
        runs = self.runs.submit(self._configs(trial))
        print(f"trial {trial.number}: {_arm(values)}, {len(runs)} runs", file=sys.stderr, flush=True)

    def _update_trial(self, trial: FrozenTrial) -> None:
        """Report new evaluations, then end the trial or resubmit its stopped runs. A collapse ends it unless in a k-section."""
        live = Trial(self.study, trial._trial_id)  # Optuna has no public way to report to a trial of another process
        runs = [config.digest for config in self._configs(trial)] if "first_seed" in trial.user_attrs else []
        if not runs or not self.runs.submitted(runs):  # the controller was killed between asking and submitting
            self._begin_trial(live)
            return
        unfinished = self.runs.unfinished(runs)  # before what they recorded is read: a run that ends in between comes next time
        for step, value in self.runs.worst_seed(runs).items():
            if step not in trial.intermediate_values:
                live.report(value, step)
        collapsed = self.runs.collapsed(runs)
        if not unfinished:
            self._end_trial(live, runs, collapsed)
        elif not self.spec.sections and (collapsed or live.should_prune()):  # sections count how many collapse
            self.executor.cancel(unfinished)
            self._end_collapsed(live, runs, max(1, collapsed))
        elif error := self.runs.resubmit(unfinished):
            self.executor.cancel(unfinished)
            live.set_user_attr("error", error)
            self.study.tell(live.number, state=TrialState.FAIL)
            self.runs.forget_retries(unfinished)

    def _end_trial(self, trial: Trial, runs: list[str], collapsed: int) -> None:
        if collapsed:
            self._end_collapsed(trial, runs, collapsed)
            return
        score = self._score(runs)
        for key, value in {"outcome": "healthy", "collapsed": 0, "seeds": len(runs), "mean": score.mean}.items():
            trial.set_user_attr(key, value)
        self.study.tell(trial.number, score.bound)
        print(f"trial {trial.number}: {score.mean:.3f}, at least {score.bound:.3f}{self._left()}", file=sys.stderr, flush=True)

    def _end_collapsed(self, trial: Trial, runs: list[str], collapsed: int) -> None:
        """Prune a trial in which `collapsed` of its `runs` collapsed. It gets no value, since a collapse is not a low score."""
        for key, value in {"outcome": "collapsed", "collapsed": collapsed, "seeds": len(runs)}.items():
            trial.set_user_attr(key, value)
        self.study.tell(trial.number, state=TrialState.PRUNED)
        print(f"trial {trial.number}: collapsed, {collapsed} of {len(runs)} runs{self._left()}", file=sys.stderr, flush=True)

    def _ended(self) -> list[FrozenTrial]:
        return [trial for trial in self.study.get_trials(deepcopy=False) if trial.state in ENDED]

    def _left(self) -> str:
        """Text with the number of ended trials and the time left at this process's pace, which is unknown in a k-section."""
        ended = len(self._ended())
        if self.spec.sections:
            return f"; {ended} trials"
        began, before = self.began
        seconds = (time.monotonic() - began) / (ended - before) * (self.spec.trials - ended)
        return f"; {ended} of {self.spec.trials} trials, about {clock(seconds)} (minutes:seconds) left, then the winner"

    def _configs(self, trial: Trial | FrozenTrial) -> list[Config]:
        first = trial.user_attrs["first_seed"]
        return self.spec.configs(trial.params, range(first, first + self.spec.seeds))

    def _score(self, runs: list[str]) -> Score:
        return self.runs.score(runs, self.spec.last, self.spec.confidence)

    # --- the winner ----------------------------------------------------------------------------------------------------

    def _result(self) -> dict[str, Any]:
        """Result of the search: scores of the winner in the search and on fresh seeds, threshold bracket, importances."""
        ended = self._ended()
        complete = [trial for trial in ended if trial.state == TrialState.COMPLETE]
        result: dict[str, Any] = {}
        if self.spec.sections:
            key, name = next(iter(self.spec.space)), next(iter(self.spec.distributions))
            bracket = self._next_step(ended).bracket
            inner, outer = (None if number is None else self.spec.values({name: number})[key] for number in bracket)
            result = {"threshold": key, "healthy": inner, "collapses": outer}
        result["trials"] = len(ended)
        if len(self.spec.space) > 1:
            result["importance"] = importance(ended)
        if not complete:
            return result | {"winner": None}
        best = max(complete, key=lambda trial: trial.values)
        configs = self.spec.configs(best.params, range(FRESH, FRESH + self.spec.winner_seeds))
        fresh = self._finish(self.runs.submit(configs))
        searched = {"mean": best.user_attrs["mean"], "bound": best.value, "seeds": best.user_attrs["seeds"]}
        return result | {"winner": self.spec.values(best.params), "searched": searched, "fresh": fresh}

    def _finish(self, runs: list[str]) -> dict[str, Any]:
        """Wait for `runs`, those of the best parameters with fresh seeds. Returns their score, and how many collapsed."""
        while unfinished := self.runs.unfinished(runs):
            if self.runs.refresh() and (error := self.runs.resubmit(unfinished)):
                raise UserError(f"{error}; the winner was not confirmed")
            self._wait()
        return {**self._score(runs)._asdict(), "collapsed": self.runs.collapsed(runs)}

    # --- refusals ------------------------------------------------------------------------------------------------------

    def _check_space(self) -> None:
        """Check the config at each corner of the search space, so that an invalid one is refused before any run is submitted."""
        from harness.train.ranks import check_ranks
        from harness.validate import Tasks, check  # torch

        corners: list[dict[str, Any]] = [{}]
        tasks: Tasks = {}
        for name, distribution in self.spec.distributions.items():
            if isinstance(distribution, CategoricalDistribution):
                ends = distribution.choices
            else:
                assert isinstance(distribution, FloatDistribution)
                ends = (distribution.low, distribution.high)
            corners = [{**corner, name: end} for corner in corners for end in ends]
        for corner in corners:
            (config,) = self.spec.configs(corner, range(1))
            try:
                check(config, tasks)
                check_ranks(config, self.executor.ranks)
            except UserError as error:
                raise UserError(f"{_arm(self.spec.values(corner))}: {error}") from None

    def _check_spec(self) -> None:
        """Raise UserError if the spec was edited since the search began, except in trials, parallel, launcher, winner_seeds."""
        file = self.sweep.home / "search-spec.json"
        spec = self.spec.model_dump(mode="json", exclude={"trials", "parallel", "launcher", "winner_seeds"})
        if file.exists() and (before := json.loads(file.read_text())) != spec:
            changed = ", ".join(key for key in spec if spec[key] != before.get(key))
            raise UserError(f"{self.sweep.path}: this search was begun with another {changed}; give the edited one another name")
        self.sweep.write("search-spec.json", spec)

    def _fail_incomplete_trials(self) -> None:
        """Mark incomplete trials as failed. They have no runs: a controller was killed while Optuna chose their parameters."""
        for trial in self.study.get_trials(deepcopy=False):
            if trial.state == TrialState.RUNNING and trial.params.keys() != self.spec.distributions.keys():
                self.study.tell(trial.number, state=TrialState.FAIL)

    def _check_failures(self, trials: list[FrozenTrial]) -> None:
        """Raise UserError when more than two trials, and more than a third of all, have failed by their own errors."""
        failed = [trial for trial in trials if trial.state == TrialState.FAIL and "error" in trial.user_attrs]
        if len(failed) > max(2, len(trials) // 3):
            last = failed[-1].user_attrs["error"]
            raise UserError(f"{len(failed)} of {len(trials)} trials failed by themselves, the last: {last}")


def _arm(values: dict[str, Any]) -> str:
    return " ".join(f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in values.items())
