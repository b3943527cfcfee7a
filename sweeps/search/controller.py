"""The controller of a search: asks Optuna, gives trials to Slurm, tells Optuna, and can be killed at any time.

A trial is its parameters; its runs follow from them, and are found again in the sweep's ledger and in Slurm. So a new controller
adopts every trial that the journal holds as running. Optuna's journal is written by the controller alone.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, Trial, TrialState
from scipy.stats import t as student

from harness.config import Config
from harness.errors import UserError
from harness.run.folder import FINISHED, writing
from sweeps.cluster import Slurm
from sweeps.launch import plan, remember
from sweeps.ledger import RunState, Sweep
from sweeps.options import SlurmOptions
from sweeps.search.sections import Point, Step, next_step
from sweeps.search.spec import CollapsePruner, Spec, load
from sweeps.slurm import NoAnswer, cancel_jobs, holders, jobs, jobs_go_on, merged

POLL = 2.0
RETRIES = 3
"""Times that a run which its surroundings killed is submitted again, before its trial has failed."""
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)
FRESH = 1000
"""The winner's fresh seeds begin here."""


class Score(NamedTuple):
    """Mean over the seeds, its one-sided lower confidence bound, and how many there were."""

    mean: float
    bound: float
    seeds: int


def search(path: Path, changes: list[str]) -> dict[str, Any]:
    """Run the search of the spec at `path`, or go on with it; its result."""
    spec = load(path, changes)
    sweep = Sweep(Path(spec.root) / spec.name)
    with jobs_go_on(sweep):
        return Controller(spec, sweep).run()


class Controller:
    """One search, from its spec."""

    def __init__(self, spec: Spec, sweep: Sweep):
        self.spec, self.sweep = spec, sweep
        options = SlurmOptions(**spec.launcher)
        options.check()
        self.slurm = Slurm(options)
        self.tries: dict[str, int] = {}
        self.active: dict[str, str] = {}
        """Runs that Slurm had under way when it was last asked, and their jobs."""

    def run(self) -> dict[str, Any]:
        """Search to the end, then the winner on fresh seeds. Returns and writes `search.json`."""
        self._check_space()
        with self.sweep.lock(), writing(self.sweep.home):
            remember(self.sweep, self.slurm.prepare(self.sweep))
            self._same_spec()
            self.study = open_study(self.sweep, self.spec)
            self._forget_half_asked()
            while self._advance():
                time.sleep(POLL)
            result = self._result()
            (self.sweep.home / "search.json").write_text(json.dumps(result, indent=2))
            return result

    # --- trials --------------------------------------------------------------------------------------------------------

    def _advance(self) -> bool:
        """Look at every trial under way, and ask for more while there is room. False when the search is over."""
        trials = self.study.get_trials(deepcopy=False)
        running = [trial for trial in trials if trial.state == TrialState.RUNNING]
        states = self._states()
        if states is None:
            return True
        for trial in running:
            self._attend(trial, states)
        self._stop_if_hopeless(trials)
        wanted = self._wanted(trials)
        for params in wanted[: max(0, self.spec.parallel - len(running))]:
            if params and not any(trial.state == TrialState.WAITING for trial in self.study.get_trials(deepcopy=False)):
                self.study.enqueue_trial(params)  # one that waits is of a controller that was killed just here
            self._begin(self.study.ask(self.spec.distributions))
        return bool(running or wanted)

    def _wanted(self, trials: list[FrozenTrial]) -> list[dict[str, Any]]:
        """Trials to begin: their parameters, empty where Optuna is to choose."""
        ended = [trial for trial in trials if trial.state in ENDED]
        under_way = [trial for trial in trials if trial.state == TrialState.RUNNING]
        room = self.spec.trials - len(ended) - len(under_way)
        if not self.spec.sections:
            return [{}] * room
        name = next(iter(self.spec.distributions))
        # The points of a round are known from the trials that ended before it, so a round goes on until all have ended.
        tries = [] if under_way else self._step(ended).tries
        return [{name: number} for number in tries][:room]

    def _step(self, ended: list[FrozenTrial]) -> Step:
        cut, (name, distribution) = self.spec.sections, next(iter(self.spec.distributions.items()))
        ends = (distribution.low, distribution.high)
        points = [Point(trial.params[name], trial.user_attrs["collapsed"], trial.user_attrs["seeds"]) for trial in ended]
        ends = ends if self._low_number_is_healthy() else ends[::-1]
        return next_step(points, *ends, cut.points, cut.tolerance, cut.boundary_seeds)

    def _low_number_is_healthy(self) -> bool:
        axis = next(iter(self.spec.space.values()))
        falling = axis.scale == "distance_from_1" and axis.high < 1  # a larger distance is a lower threshold
        return (self.spec.sections.healthy == "low") != falling

    def _begin(self, trial: Trial) -> None:
        values = self.spec.values(trial.params)
        for key, value in values.items():
            trial.set_user_attr(key, value)
        if "first_seed" not in trial.user_attrs:
            others = [other for other in self.study.get_trials(deepcopy=False) if other.number != trial.number]
            trial.set_user_attr("first_seed", free_seed(others, trial.params, self.spec.seeds))
        runs = self._runs(trial)
        plan(self.sweep, {c.digest: c for c in runs}, self.sweep.states())
        todo = [c.digest for c in runs if not self._over(c.digest) and c.digest not in self.active]
        if todo:
            self.slurm.submit(self.sweep, todo)
        print(f"trial {trial.number}: {self._arm(values)}, {len(runs)} runs", file=sys.stderr, flush=True)

    def _attend(self, trial: FrozenTrial, states: dict[str, RunState]) -> None:
        """Report what its runs have evaluated; end it when they have ended, or when it has collapsed."""
        live = Trial(
            self.study, trial._trial_id
        )  # the one place where Optuna's API has no public way: reports of another process
        runs = [config.digest for config in self._runs(trial)] if "first_seed" in trial.user_attrs else []
        if not runs or any(run not in states or states[run].state == "queued" for run in runs):
            # the controller was killed between asking and submitting
            self._begin(live)
            return
        for step, value in worst_seed(self.sweep, runs).items():
            if step not in trial.intermediate_values:
                live.report(value, step)
        collapsed = sum(self._collapsed(run) for run in runs)
        if all(self._over(run) for run in runs):
            self._end(live, runs, collapsed)
        elif not self.spec.sections and (collapsed or live.should_prune()):  # sections count how many collapse
            cancel_jobs(self.sweep, [run for run in runs if not self._over(run)])
            self._prune(live, runs, max(1, collapsed))
        else:
            self._mend(live, [run for run in runs if not self._over(run)], states)

    def _mend(self, trial: Trial, runs: list[str], states: dict[str, RunState]) -> None:
        """Submit again what its surroundings ended; a run that failed by itself fails its trial."""
        bad = [run for run in runs if states[run].state == "failed" or self.tries.get(run, 0) > RETRIES]
        if bad:
            cancel_jobs(self.sweep, runs)
            trial.set_user_attr("error", f"{self.sweep.path / bad[0]}: {states[bad[0]].error}")
            self.study.tell(trial.number, state=TrialState.FAIL)
            for run in runs:  # a later trial of the same parameters has the same runs
                self.tries.pop(run, None)
            return
        # A task whose other runs go on may start it again itself; its turn here is when Slurm has let go of it.
        ended = [run for run in runs if states[run].state in ("interrupted", "preempted", "cancelled")]
        stopped = [run for run in ended if run not in self.active]
        for run in stopped:
            self.tries[run] = self.tries.get(run, 0) + 1
        if stopped:
            self.slurm.submit(self.sweep, stopped)

    def _end(self, trial: Trial, runs: list[str], collapsed: int) -> None:
        if collapsed:
            self._prune(trial, runs, collapsed)
            return
        score = self.score(runs)
        for key, value in {"outcome": "healthy", "collapsed": 0, "seeds": len(runs), "mean": score.mean}.items():
            trial.set_user_attr(key, value)
        self.study.tell(trial.number, score.bound)
        print(f"trial {trial.number}: {score.mean:.3f}, at least {score.bound:.3f}", file=sys.stderr, flush=True)

    def _prune(self, trial: Trial, runs: list[str], collapsed: int) -> None:
        """Collapse is a state of its own and not a low score: Optuna is told that the trial was pruned, with no value."""
        for key, value in {"outcome": "collapsed", "collapsed": collapsed, "seeds": len(runs)}.items():
            trial.set_user_attr(key, value)
        self.study.tell(trial.number, state=TrialState.PRUNED)
        print(f"trial {trial.number}: collapsed, {collapsed} of {len(runs)} runs", file=sys.stderr, flush=True)

    # --- the winner ----------------------------------------------------------------------------------------------------

    def _result(self) -> dict[str, Any]:
        """The winner as the search saw it and on fresh seeds; with sections also the bracket of the threshold."""
        ended = [trial for trial in self.study.get_trials(deepcopy=False) if trial.state in ENDED]
        complete = [trial for trial in ended if trial.state == TrialState.COMPLETE]
        bracket: dict[str, Any] = {}
        if self.spec.sections:
            key, name = next(iter(self.spec.space)), next(iter(self.spec.distributions))
            inner, outer = (None if n is None else self.spec.values({name: n})[key] for n in self._step(ended).bracket)
            bracket = {"threshold": key, "healthy": inner, "collapses": outer}
        if not complete:
            return {**bracket, "trials": len(ended), "winner": None}
        best = max(complete, key=lambda trial: trial.value)
        configs = self.spec.configs(best.params, range(FRESH, FRESH + self.spec.winner_seeds))
        runs = [config.digest for config in configs]
        plan(self.sweep, {c.digest: c for c in configs}, self.sweep.states())
        fresh, collapsed = self._finish(runs)
        return {
            **bracket,
            "trials": len(ended),
            "winner": self.spec.values(best.params),
            "searched": {"mean": best.user_attrs["mean"], "bound": best.value, "seeds": best.user_attrs["seeds"]},
            "fresh": {**fresh._asdict(), "collapsed": collapsed},
        }

    def _finish(self, runs: list[str]) -> tuple[Score, int]:
        """Wait for runs that belong to no trial; their score and how many collapsed."""
        while not all(map(self._over, runs)):
            states = self._states()
            if states is not None:
                waiting = [run for run in runs if not self._over(run) and run not in self.active]
                for run in waiting:
                    self.tries[run] = self.tries.get(run, -1) + 1
                    if states[run].state == "failed" or self.tries[run] > RETRIES:
                        raise UserError(f"{self.sweep.path / run}: {states[run].error}; the winner was not confirmed")
                if waiting:
                    self.slurm.submit(self.sweep, waiting)
            time.sleep(POLL)
        return self.score(runs), sum(map(self._collapsed, runs))

    # --- what the runs tell --------------------------------------------------------------------------------------------

    def score(self, runs: list[str]) -> Score:
        """Of runs that ended: the mean over their last evaluations, and over the runs."""
        values = [statistics.fmean(list(evaluations(self.sweep, run).values())[-self.spec.last :]) for run in runs]
        return lower_bound(values, self.spec.confidence)

    def _states(self) -> dict[str, RunState] | None:
        try:
            known = jobs(self.sweep)
            self.active = {run: job.id for run, job in holders(self.sweep, known).items() if job.live}
            return merged(self.sweep, self.sweep.states(), known)
        except NoAnswer as error:
            print(error, file=sys.stderr, flush=True)
            return None

    def _over(self, run: str) -> bool:
        return self.sweep.folder(run).state in FINISHED

    def _collapsed(self, run: str) -> bool:
        return any(event["kind"] == "collapse" for event in self.sweep.folder(run).events())

    def _runs(self, trial: Trial | FrozenTrial) -> list[Config]:
        first = trial.user_attrs["first_seed"]
        return self.spec.configs(trial.params, range(first, first + self.spec.seeds))

    def _arm(self, values: dict[str, Any]) -> str:
        return " ".join(f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in values.items())

    # --- refusals ------------------------------------------------------------------------------------------------------

    def _check_space(self) -> None:
        """One config of each corner: what a run would refuse is told before the first is submitted."""
        from harness.train.ranks import check_ranks
        from harness.validate import check  # torch

        corners: list[dict[str, Any]] = [{}]
        for name, distribution in self.spec.distributions.items():
            ends = distribution.choices if hasattr(distribution, "choices") else (distribution.low, distribution.high)
            corners = [{**corner, name: end} for corner in corners for end in ends]
        for corner in corners:
            (config,) = self.spec.configs(corner, range(1))
            try:
                check(config)
                check_ranks(config, self.slurm.options.ranks)
            except UserError as error:
                raise UserError(f"{self._arm(self.spec.values(corner))}: {error}") from None

    def _same_spec(self) -> None:
        """What decides a trial must not change under the name of a search; how many there are, and where they run, may."""
        kept = self.sweep.home / "search-spec.json"
        asked = self.spec.model_dump(mode="json", exclude={"trials", "parallel", "launcher", "winner_seeds"})
        if kept.exists() and (before := json.loads(kept.read_text())) != asked:
            changed = ", ".join(key for key in asked if asked[key] != before.get(key))
            raise UserError(f"{self.sweep.path}: this search was begun with another {changed}; give the edited one another name")
        kept.write_text(json.dumps(asked))

    def _forget_half_asked(self) -> None:
        """A controller that was killed while Optuna chose leaves a trial without all its parameters: no run belongs to it."""
        for trial in self.study.get_trials(deepcopy=False):
            if trial.state == TrialState.RUNNING and trial.params.keys() != self.spec.distributions.keys():
                self.study.tell(trial.number, state=TrialState.FAIL)

    def _stop_if_hopeless(self, trials: list[FrozenTrial]) -> None:
        failed = [trial for trial in trials if trial.state == TrialState.FAIL and "error" in trial.user_attrs]
        if len(failed) > max(2, len(trials) // 3):
            raise UserError(
                f"{len(failed)} of {len(trials)} trials failed by themselves, the last: {failed[-1].user_attrs['error']}"
            )


def open_study(sweep: Sweep, spec: Spec) -> optuna.Study:
    """The study in the sweep's folder. Its sampler is seeded anew with each controller, else it would repeat its points."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sweep.home.mkdir(parents=True, exist_ok=True)
    path = str(sweep.home / "search.journal")
    storage = JournalStorage(JournalFileBackend(path, lock_obj=JournalFileOpenLock(path)))
    study = optuna.create_study(study_name=spec.name, storage=storage, direction="maximize", load_if_exists=True)
    study.sampler = optuna.samplers.TPESampler(multivariate=True, constant_liar=True, seed=spec.sampler_seed + len(study.trials))
    study.pruner = CollapsePruner(spec.prune.fraction, spec.prune.patience)
    return study


def free_seed(others: list[FrozenTrial], params: dict[str, Any], seeds: int) -> int:
    """The first of `seeds` seeds that no other trial of these parameters has. A failed trial gives no score, so its are free."""
    alike = [other for other in others if other.params == params and other.state != TrialState.FAIL]
    taken = {other.user_attrs.get("first_seed") for other in alike}
    return next(first for first in count(0, seeds) if first not in taken)


def evaluations(sweep: Sweep, run: str) -> dict[int, float]:
    """Held-out reward by step."""
    return {int(row["step"]): row["eval/reward"] for row in sweep.folder(run).metrics() if "eval/reward" in row}


def worst_seed(sweep: Sweep, runs: list[str]) -> dict[int, float]:
    """The lowest evaluation of the runs at each step that all of them have reached."""
    tables = [evaluations(sweep, run) for run in runs]
    common = set.intersection(*(set(table) for table in tables))
    return {step: min(table[step] for table in tables) for step in sorted(common)}


def lower_bound(values: list[float], confidence: float) -> Score:
    """mean − t · s / √n, with the `confidence` quantile of Student's t of n − 1 degrees of freedom: one-sided."""
    n, mean = len(values), statistics.fmean(values)
    return Score(mean, mean - float(student.ppf(confidence, n - 1)) * statistics.stdev(values) / n**0.5, n)
