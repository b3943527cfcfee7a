"""A search on a real Slurm: its controller is killed, its trials are preempted, a trial collapses."""

import json
import signal
import subprocess
import sys

import optuna
import pytest
import yaml
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from analysis.load import load as analysed
from sweeps.launchers.squeue import cancel_jobs, jobs
from sweeps.ledger import Sweep
from sweeps.search.controller import Controller
from sweeps.search.spec import Spec
from sweeps.search.study import open_study
from sweeps.search.trial_runs import RETRIES
from tests.harness.conftest import TINY
from tests.sweeps.conftest import held, output, rows, search_spec, task_log
from tests.waiting import PATIENCE, until

# A learning rate that changes nothing in 30 steps, so that no evaluation moves by chance.
pytestmark = [pytest.mark.timeout(900), pytest.mark.slurm]
QUIET = ["steps=30", "checkpoint.every=5", "evaluation.prompts=7", "evaluation.samples=8", "actor.lr=1e-6"]


def specified(root, name, space, overrides=(), **more) -> dict:
    slurm = {"mem_gb": 1, "runs_per_job": 2, "signal_delay_s": 5}
    own = {"trials": 4, "parallel": 2, "launcher": slurm}
    return search_spec(root, name=name, space=space, overrides=[*TINY, *QUIET, *overrides], **own | more)


@pytest.fixture
def search(slurm, shared_root, tmp_path):
    """search(name, space, ...) -> a started controller; the same call again is the same command again."""
    started = []

    def start(name, space, **more):
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump(specified(shared_root, name, space, **more)))
        command = [sys.executable, "-m", "faultline", "search", file]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()


def study(sweep: Sweep) -> optuna.Study:
    """The study, opened the way optuna-dashboard and other programs open it."""
    return optuna.load_study(study_name=None, storage=JournalStorage(JournalFileBackend(str(sweep.home / "search.journal"))))


def ended(sweep: Sweep) -> int:
    if not (sweep.home / "search.journal").exists():
        return 0
    return sum(trial.state.is_finished() for trial in study(sweep).trials)


def test_a_search_survives_its_controller_twice_and_the_preemption_of_its_trials(search, shared_root):
    space = {
        "correction.weight.upper": {"low": 1.1, "high": 9, "scale": "distance_from_1"},
        "correction.weight.level": ["token", "sequence"],
    }
    sweep = Sweep(shared_root / "survivor")
    first = search("survivor", space)
    until(lambda: len(sweep.states()) == 4 and any(rows(sweep.folder(run)) for run in sweep.states()))
    (run,) = held(sweep, [next(run for run in sweep.states() if rows(sweep.folder(run)))])
    first.kill()
    other = ["sbatch", "-p", "high", "-N", "2", "-c", "3", "-o", "/dev/null", "--wrap", "sleep 1"]
    subprocess.run(other, check=True, capture_output=True)
    until(lambda: "Caught signal SIGUSR2" in task_log(sweep, run.job))
    run.goes_on()
    second = search("survivor", space)
    until(lambda: ended(sweep) >= 1)
    second.kill()
    third = search("survivor", space)
    printed = output(third)
    assert third.returncode == 0, third.stderr
    trials = study(sweep).trials
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 4
    assert {key for trial in trials for key in trial.params} == {"|correction.weight.upper - 1|", "correction.weight.level"}
    assert all(
        trial.user_attrs["correction.weight.upper"] == pytest.approx(1 + trial.params["|correction.weight.upper - 1|"], rel=1e-3)
        for trial in trials
    )
    assert all(sorted(trial.intermediate_values) == list(range(0, 31, 2)) for trial in trials)
    result = json.loads(printed)
    best = max(trials, key=lambda trial: trial.value)
    assert result["searched"]["bound"] == best.value and result["fresh"]["seeds"] == 2 and result["fresh"]["collapsed"] == 0
    states = sweep.states()
    assert len(states) == 4 * 2 + 2 and {state.state for state in states.values()} == {"done"}
    seeds = [sweep.config(run).seed for run in states]
    assert sorted(seeds) == [0] * 4 + [1] * 4 + [1000, 1001]
    requeued = [event["run"] for event in sweep.events() if event["event"] == "started"]
    assert len(requeued) > len(set(requeued)) == 10  # some were preempted
    assert len(analysed(sweep.path).runs) == 10


def test_trials_of_equal_parameters_are_samples_of_their_own(search, shared_root):
    """A space of one choice: each trial under way has seeds of its own, and each run is submitted once."""
    process = search("alike", {"loss.eps_low": [0.2]}, trials=3, parallel=3)
    printed, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, told
    sweep = Sweep(shared_root / "alike")
    assert [trial.user_attrs["first_seed"] for trial in study(sweep).trials] == [0, 2, 4]
    assert sorted(sweep.config(run).seed for run in sweep.states()) == [0, 1, 2, 3, 4, 5, 1000, 1001]
    assert sum(event["event"] == "submitted" for event in sweep.events()) == 8
    assert json.loads(printed)["fresh"]["seeds"] == 2


def test_cancel_stops_the_controller_and_retry_brings_the_runs_back(search, shared_root):
    what = {"name": "stopped", "space": {"loss.eps_low": [0.2]}, "trials": 1, "overrides": ["steps=300"]}
    process = search(**what)
    sweep = Sweep(shared_root / "stopped")
    until(lambda: len(sweep.states()) == 2 and any(rows(sweep.folder(run)) for run in sweep.states()))
    held(sweep, [next(run for run in sweep.states() if rows(sweep.folder(run)))])
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130 and "The jobs go on" in told and "Traceback" not in told, told
    command = [sys.executable, "-m", "faultline", "sweep"]
    starting = search(**what)
    assert "importing" in starting.stderr.readline()
    done = subprocess.run([*command, "cancel", sweep.path], capture_output=True, text=True)
    assert done.returncode == 0 and "2 runs cancelled" in done.stdout, done.stdout + done.stderr
    _, told = starting.communicate(timeout=PATIENCE)
    assert starting.returncode in (2, -signal.SIGTERM), told  # by itself, or had it the lock by then
    until(lambda: not any(job.live for job in jobs(sweep)))
    assert {state.state for state in sweep.states().values()} == {"cancelled"}

    process = search(**what)
    until(lambda: [event["event"] for event in sweep.events()].count("started") == 2)
    done = subprocess.run([*command, "cancel", sweep.path], capture_output=True, text=True)
    assert done.returncode == 0 and "2 runs cancelled" in done.stdout, done.stdout + done.stderr
    assert process.wait(PATIENCE) == -signal.SIGTERM
    until(lambda: not any(job.live for job in jobs(sweep)))
    assert {state.state for state in sweep.states().values()} == {"cancelled"}
    done = subprocess.run([*command, "retry", sweep.path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {state.state for state in sweep.states().values()} == {"done"}


def test_sections_find_where_runs_collapse(search, shared_root):
    """At a learning rate of 1 an able policy is destroyed within a few steps. The ends first, then two points between them."""
    space = {"actor.lr": {"low": 1e-6, "high": 1.0, "scale": "log"}}
    sections = {"points": 2, "tolerance": 500, "boundary_seeds": 2, "healthy": "low"}
    able = ["task.slip=0.02", "warmstart.keep_high=1.0", "task.modulus=7", "evaluation.prompts=12", "rollout.prompts=8"]
    more = {"sections": sections, "trials": 20, "overrides": ["collapse.stop=true", *able]}
    process = search("edge", space, **more)
    result = json.loads(output(process))
    assert process.returncode == 0
    trials = study(sweep := Sweep(shared_root / "edge")).trials
    assert sorted(trial.params["actor.lr"] for trial in trials) == pytest.approx([1e-6, 1e-4, 1e-2, 1.0])
    outcome = {round(trial.params["actor.lr"], 6): trial for trial in trials}
    assert outcome[1e-6].state.name == "COMPLETE" and outcome[1.0].state.name == "PRUNED"
    assert outcome[1.0].user_attrs["outcome"] == "collapsed" and outcome[1.0].user_attrs["collapsed"] == 2
    assert result["threshold"] == "actor.lr" and result["healthy"] < result["collapses"] <= 1.0
    assert {state.state for state in sweep.states().values()} <= {"done", "collapsed"}
    edited = search("edge", space, **(more | {"last": 2}))
    assert edited.wait(PATIENCE) == 2 and "begun with another last" in edited.stderr.read()


def test_a_corner_that_a_run_would_refuse_stops_the_search_before_it_starts(search, shared_root):
    process = search("corner", {"loss.eps_low": {"low": 0.1, "high": 2.0, "scale": "linear"}})
    _, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2 and "loss.eps_low=2" in told and "Traceback" not in told
    assert not Sweep(shared_root / "corner").states()


def test_a_trial_like_one_that_failed_has_all_its_retries(slurm, shared_root):
    """The runs of the first trial have ended too often; the second has the same seeds. No job comes to start."""
    launcher = {"mem_gb": 1, "sbatch": {"hold": True}}
    spec = Spec.model_validate(specified(shared_root, "again", {"loss.eps_low": [0.2]}, parallel=1, launcher=launcher))
    controller = Controller(spec, Sweep(shared_root / "again"))
    controller.executor.prepare()
    controller.study = open_study(controller.sweep, spec)
    controller._advance()  # begins the first
    cancel_jobs(controller.sweep)
    controller.runs.retries = dict.fromkeys(controller.sweep.states(), RETRIES)
    until(lambda: controller._advance() and len(controller.study.trials) == 2)  # it fails; the second begins
    controller._advance()  # the second is looked at
    cancel_jobs(controller.sweep)
    assert [trial.state.name for trial in controller.study.trials] == ["FAIL", "RUNNING"]
    assert [trial.user_attrs["first_seed"] for trial in controller.study.trials] == [0, 0]
