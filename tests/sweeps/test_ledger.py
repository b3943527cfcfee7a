"""The ledger without any scheduler: states from events, damage, locks, another code, two thousand runs."""

import contextlib
import cProfile
import json
import subprocess
import sys
import time

import pytest

from harness.errors import UserError
from harness.run.folder import RunFolder
from sweeps.commands import cancel, logs, retry, status
from sweeps.launch import launch, plan
from sweeps.launchers.local import Local
from sweeps.launchers.options import SlurmOptions
from sweeps.launchers.pool import Pool
from sweeps.launchers.slurm import Task
from sweeps.launchers.squeue import Job, merge_states
from sweeps.ledger import Sweep
from sweeps.lock import LauncherLock
from sweeps.pace import cost, estimate
from sweeps.progress import Display
from sweeps.snapshot import snapshot


@pytest.fixture
def sweep(tmp_path):
    return Sweep(tmp_path / "sweep")


def planned(sweep, *runs):
    sweep.log("planned", runs, arm="bf16 ppo", seed=0, steps=10, cost="")


def job(state, batch="b", index=0):
    return Job(f"7_{index}", state, "Resources", batch, index)


def test_events_become_states(sweep):
    planned(sweep, "a", "b", "c", "d", "e")
    sweep.log("submitted", ["a", "b", "c", "e"], batch="x")
    sweep.log("started", ["a", "b", "c"], job="7_0", host="n1", pid=1, step=0)
    sweep.log("ended", ["a"], state="done", job="7_0")
    sweep.log("cancelled", ["b"])
    sweep.log("ended", ["b"], state="preempted", job="7_0")  # how a cancelled run ends
    sweep.log("ended", ["c"], state="preempted", job="7_0")
    sweep.log("cancelled", ["e"])
    sweep.log("started", ["e"], job="7_0", host="n1", pid=1, step=0)  # its process was starting meanwhile
    sweep.log("ended", ["e"], state="interrupted", job="7_0")
    assert {run: state.state for run, state in sweep.states().items()} == {
        "a": "done",
        "e": "cancelled",
        "b": "cancelled",
        "c": "preempted",
        "d": "queued",
    }


def test_starts_are_counted_from_one_and_the_same_step(sweep):
    planned(sweep, "a")
    for step in (0, 0, 5, 5, 5):
        sweep.log("started", ["a"], job="1", host="n", pid=1, step=step)
    assert sweep.states()["a"].starts == 3
    sweep.log("submitted", ["a"], batch="x")  # a person has looked at it
    assert sweep.states()["a"].starts == 0


@pytest.mark.parametrize(
    "damage",
    [
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"event": "planned"}',
        b'{"event": "x", "run": "a"}',
        b'{"event": [], "run": "a"}',
        b'{"event": "planned", "run": "a", "arm": "bf16 ppo", "seed": 0}',
        b'{"event": "submitted", "run": "a"}',
        b'{"event": "started", "run": "a", "time": 1}',
        b'{"event": "started", "run": "a", "job": "7_0", "step": "0"}',
        b'{"event": "ended", "run": "a"}',
    ],
)
def test_a_damaged_line_is_named_and_loses_nothing_else(sweep, damage):
    planned(sweep, "a")
    with open(sweep.home / "ledger.jsonl", "ab") as file:
        file.write(damage)  # cut short, without its newline
    sweep.log("ended", ["a"], state="done", job="")
    assert sweep.states()["a"].state == "done"
    assert len(sweep.damaged) == 1 and "ledger.jsonl:2: not an event" in sweep.damaged[0]


def test_damaged_runs_of_a_task_fail_alone(sweep, monkeypatch):
    """Three of them, so that none starts a process: what is told of the last shows that the task went on past the others."""
    damage = {"a": "", "b": "[]", "c": '{"nosuch": 1}'}
    planned(sweep, *damage)
    sweep.log("submitted", damage, batch="x")
    for run, text in damage.items():
        sweep.folder(run).path.mkdir()
        (sweep.folder(run).path / "config.json").write_text(text)
    (sweep.folder("a").path / "status.json").write_text("")
    (sweep.home / "batches").mkdir()
    (sweep.home / "batches" / "x.json").write_text(json.dumps([[*damage]]))
    for name, value in {"SUBMITIT_EXECUTOR": "slurm", "SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}.items():
        monkeypatch.setenv(name, value)
    Task(str(sweep.path), "x", 0, 1)()
    states = sweep.states()
    assert {run: state.state for run, state in states.items()} == dict.fromkeys(damage, "failed")
    assert "a/config.json: unreadable" in states["a"].error and "b/config.json: not what a run writes" in states["b"].error
    assert "c/config.json: not a config of this version" in states["c"].error and "\n" not in states["c"].error


def test_a_run_whose_plan_was_lost_is_found_by_its_folder(sweep, tiny):
    config = tiny("seed=3")
    plan(sweep, {config.digest: config}, {})
    (sweep.home / "ledger.jsonl").write_text("rubbish\n")
    sweep.log("submitted", [config.digest], batch="x")
    assert sweep.states()[config.digest].seed == 3 and sweep.states()[config.digest].state == "submitted"


def test_what_slurm_knows_corrects_the_ledger(sweep):
    planned(sweep, *"abcdefg")
    sweep.log("submitted", "abcdefg", batch="b")
    sweep.log("started", ["b", "c", "f", "g"], job="7_1", host="n1", pid=1, step=0)
    sweep.log("ended", ["f"], state="interrupted", error="killed by SIGKILL", job="7_5")
    (sweep.home / "batches").mkdir(parents=True)
    (sweep.home / "batches" / "b.json").write_text(json.dumps([[run] for run in "abcdefg"]))
    sweep.folder("g").path.mkdir()
    sweep.folder("g").status("done")
    slurm = ["PENDING", "RUNNING", "NODE_FAIL", "CANCELLED", "RUNNING", "RUNNING", "COMPLETED"]
    told = merge_states(sweep, sweep.states(), [job(state, index=i) for i, state in enumerate(slurm)])
    assert {run: state.state for run, state in told.items()} == {
        "a": "pending",
        "b": "running",
        "c": "interrupted",  # its process cannot be alive
        "d": "interrupted",  # it never came to start
        "e": "submitted",
        "f": "interrupted",
        "g": "done",  # its process was killed after its last word in the folder and before that in the ledger
    }
    assert told["c"].error == "job 7_2 ended as NODE_FAIL" and told["a"].error == "Resources"
    gone = merge_states(sweep, sweep.states(), [])
    assert gone["a"].state == "interrupted" and "Slurm does not know it any more" in gone["a"].error


def test_two_launchers_and_an_edited_config(sweep, tiny):
    configs = [tiny(f"seed={seed}") for seed in (0, 1)]
    place = Sweep(configs[0].path.parent)
    plan(place, {c.digest: c for c in configs}, {})
    with place.lock.hold(), pytest.raises(UserError, match=r"another launcher .* is working on this sweep"):
        launch(configs, Local(1))
    with pytest.raises(UserError, match=r"1 of the 1 runs are not among the 2 .*actor.lr=0.1 \(there 0.0003\).*extend=true"):
        launch([tiny("actor.lr=0.1")], Local(1))
    assert not (place.path / tiny("actor.lr=0.1").digest).exists()


def test_a_task_that_starts_late_leaves_a_cancelled_run_alone(tiny):
    config = tiny("seed=0")
    place = Sweep(config.path.parent)
    plan(place, {config.digest: config}, {})
    place.log("submitted", [config.digest], batch="b")
    place.log("cancelled", [config.digest])
    Pool(place, 1, job="7_0").run([config.digest])
    assert place.states()[config.digest].state == "cancelled"


def test_what_was_starting_when_the_sweep_was_cancelled_does_nothing(tiny, monkeypatch):
    """This process stands for the launcher, which has begun but does not hold the lock; then for one of a later command."""
    config = tiny("seed=0")
    place = Sweep(config.path.parent)
    plan(place, {config.digest: config}, {})
    with pytest.raises(UserError, match="nothing is running; a launcher that is just starting stops by itself"):
        cancel(place.path)
    with pytest.raises(UserError, match="cancelled after this was started; give the command again"):
        launch([config], Local(1))
    assert place.states()[config.digest].state == "queued" and place.lock.holder() is None
    monkeypatch.setattr("sweeps.lock.STARTED", time.time())
    with place.lock.hold():
        pass


def test_nothing_in_trouble_is_told(sweep, capsys):
    planned(sweep, "a")
    sweep.log("ended", ["a"], state="done", job="")
    retry(sweep.path, [], None)
    assert "nothing to run again, no run of it is failed, interrupted, cancelled or preempted" in capsys.readouterr().out
    logs(sweep.path, [], 5)
    assert "no run of it is failed, interrupted, cancelled or preempted; name a run by its hash" in capsys.readouterr().out


def test_the_time_that_a_grid_takes_counts_the_steps_that_are_left(tiny):
    """An earlier run took 0.5 s a step, another of 3 s a step had another shape. Of 60 and 60 steps one run has 20 behind it:
    100 steps, 50 s."""
    first, second, other = (tiny("steps=60", *more) for more in (["seed=0"], ["seed=1"], ["task.length=8"]))
    place = Sweep(first.path.parent)
    for run, config, seconds in (("a", first, 30), ("b", other, 180)):
        place.log("planned", [run], arm="bf16 ppo", seed=0, steps=60, cost=cost(config))
        place.log("ended", [run], state="done", job="", steps=60, seconds=seconds)
    (second.path / "checkpoints" / "step-00000020").mkdir(parents=True)
    told = estimate({"c": first, "d": second}, ["c", "d"])
    assert told == "; 100 steps, 0:50 (minutes:seconds) of runs, by the pace of 1 earlier ones"


def test_a_ledger_of_another_sweep_that_cannot_be_read_stops_no_launch(tiny, tmp_path):
    """One is a folder, one holds words for numbers. A ledger of one's own is named."""
    config = tiny("steps=60")
    for name in ("folder", "words"):
        other = Sweep(tmp_path / name)
        planned(other, "a")
        if name == "folder":
            (other.home / "ledger.jsonl").unlink()
            (other.home / "ledger.jsonl").mkdir()
            with pytest.raises(UserError, match=r"ledger.jsonl: unreadable \(Is a directory\); make it readable,"):
                other.states()
        else:
            other.log("ended", ["a"], state="done", job="", steps="x", seconds=[1])
            other.log("ended", ["a"], state="done", job="", steps=0, seconds=1)
    moved = config.model_copy(update={"run": config.run.model_copy(update={"root": str(tmp_path)})})
    assert estimate({"a": moved}, ["a"]) == "; time unknown: no finished run of this shape yet"


def test_the_time_left_is_by_the_pace_of_steps_of_runs_that_go_on(tiny, monkeypatch, capsys):
    """A warm start ends within the first 100 s, then 20 steps take 100 s: 5 s a step, so 30 more take 150 s. The other failed."""
    first, second = (tiny("steps=60", f"seed={seed}") for seed in (0, 1))
    for config in (first, second):
        config.path.mkdir(parents=True)
    RunFolder(second.path).status("failed", step=20, steps=60)
    with Display([first, second], {c.digest: str(c.seed) for c in (first, second)}) as shown:
        for now, step in ((0, 0), (100, 10), (200, 30)):
            RunFolder(first.path).status("running", step=step, steps=60)
            monkeypatch.setattr("sweeps.progress.time.time", lambda now=now: now)
            shown.update(force=True)
    lines = capsys.readouterr().err.splitlines()
    assert ["starting" in line for line in lines[:3]] == [True, True, False] and "50/120 steps" in lines[2]
    assert "about 2:30 left" in lines[2]


def test_a_sweep_whose_launch_is_not_known_cannot_be_retried(sweep):
    planned(sweep, "a")
    with pytest.raises(UserError, match="how it was launched is not known; give the command that launched it again"):
        retry(sweep.path, ["a"], None)


def test_a_search_on_another_machine_is_not_cancelled_from_here(sweep):
    """Its controller would submit again what was cancelled."""
    planned(sweep, "a")
    (sweep.home / "batches").mkdir()
    (sweep.home / "search-spec.json").write_text("{}")
    with sweep.lock.hold():
        (sweep.home / "lock").write_text("elsewhere 7\n")
        with pytest.raises(UserError, match=r"another launcher \(process 7 on elsewhere\) works on it; cancel it there"):
            cancel(sweep.path)


def test_a_launcher_that_begins_while_the_sweep_is_cancelled_is_not_killed_by_a_number_of_another_machine(sweep, monkeypatch):
    """It takes the lock just before the mark: on another machine, then here without having written its name yet."""
    planned(sweep, "a")
    (sweep.home / "search-spec.json").write_text("{}")
    mark = LauncherLock.mark_cancelled
    for name, told in (("elsewhere 7\n", "cancel it there"), ("", "a launcher that is just starting stops by itself")):
        with contextlib.ExitStack() as held, monkeypatch.context() as patch:

            def begin(lock, held=held, name=name):
                held.enter_context(lock.hold())
                (lock.home / "lock").write_text(name)
                mark(lock)

            patch.setattr(LauncherLock, "mark_cancelled", begin)
            patch.setattr("sweeps.lock.STARTED", time.time())
            patch.setattr("os.kill", lambda *given: pytest.fail(f"kill{given}"))
            with pytest.raises(UserError, match=told):
                cancel(sweep.path)


def test_a_cancelled_run_that_never_started_is_cancelled(sweep, monkeypatch, capsys):
    """The local launcher ends by SIGTERM: it enters the ends of the runs that it has started, of no other."""
    planned(sweep, "a", "b", "c")
    sweep.log("submitted", ["a", "b"], batch="")
    sweep.log("ended", ["a"], state="done", job="local")
    with sweep.lock.hold():
        monkeypatch.setattr("os.kill", lambda *given: None)
        cancel(sweep.path)
    status(sweep.path)
    assert {run: state.state for run, state in sweep.states().items()} == {"a": "done", "b": "cancelled", "c": "queued"}
    assert "1 queued, 1 done, 1 cancelled" in capsys.readouterr().out


def test_one_command_launches_one_sweep(tiny):
    with pytest.raises(UserError, match="one command launches one sweep"):
        launch([tiny("run.sweep=bad"), tiny("run.sweep=worse")], Local(1))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"timeout_min": 0}, "hydra.launcher.timeout_min=0: must be greater than 0"),
        ({"timeout_min": "abc"}, "hydra.launcher.timeout_min='abc': must be a whole number"),
        ({"runs_per_job": 1.5}, "hydra.launcher.runs_per_job=1.5: must be a whole number"),
        ({"mem_gb": float("inf")}, "hydra.launcher.mem_gb=inf: must be a finite number"),
        ({"setup": "hostname"}, "hydra.launcher.setup='hostname': must be a list"),
        ({"signal_delay_s": 3600}, r"signal_delay_s=3600: must be below the time limit, 60 \* timeout_min = 3600 s"),
        ({"ranks": 2, "runs_per_job": 4}, "hydra.launcher.ranks=2: such a run has its task to itself; set runs_per_job=1"),
        ({"code": "old"}, "hydra.launcher.code='old': must be 'sweep' or 'new'"),
        ({"sbatch": {"comment": "project42"}}, "hydra.launcher.sbatch.comment: the launcher sets it"),
        ({"sbatch": {"job_name": "mine"}}, "hydra.launcher.sbatch.job_name: the launcher sets it"),
        ({"sbatch": {"time": "00:01:00"}}, "hydra.launcher.sbatch.time: set hydra.launcher.timeout_min instead"),
        ({"sbatch": {"open-mode": "truncate"}}, "hydra.launcher.sbatch.open-mode: the launcher sets it"),
        ({"site": "nosuch.yaml"}, "hydra.launcher.site=nosuch.yaml: cannot be read"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(options, told):
    with pytest.raises(UserError, match=told):
        SlurmOptions(**options).check()


def test_what_a_site_file_sets_is_checked_too(tmp_path):
    site = tmp_path / "site.yaml"
    for text, told in [
        ("setup: module load cuda", "hydra.launcher.setup='module load cuda': must be a list"),
        ("sbatch: {signal: USR1}", "hydra.launcher.sbatch.signal: the launcher sets it"),
        ("- partition", "site.yaml: not a file of keys and values"),
    ]:
        site.write_text(text)
        with pytest.raises(UserError, match=told):
            SlurmOptions(site=str(site)).check()
    site.write_text("account: 42\nsetup: [hostname]")
    options = SlurmOptions(site=str(site), signal_delay_s=59, timeout_min=1)
    options.check()
    assert (options.account, options.setup, options.sbatch) == ("42", ["hostname"], {})


def test_other_code_wants_a_choice(sweep):
    own = snapshot(sweep, None)
    assert snapshot(sweep, None) == own and (own / "harness" / "train" / "model" / "actor.py").exists()
    assert json.loads((own / "snapshot.json").read_text())["snapshot"] == own.name
    own = own.rename(own.with_name("0123456789ab"))
    with pytest.raises(UserError, match=r"have code 0123456789ab, the files here are .*code=sweep.*code=new"):
        snapshot(sweep, None)
    assert snapshot(sweep, "sweep") == own
    assert snapshot(sweep, "new") != own
    assert snapshot(sweep, "sweep") != own  # the latest choice


def test_a_full_disk_leaves_no_half_snapshot(sweep, tmp_path):
    """A limit on the size of a file, in a process of its own; the largest source file is above 8 KB."""
    code = "import resource, sys; from sweeps.ledger import Sweep; from sweeps.snapshot import snapshot\n"
    code += (
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{code}snapshot(Sweep({str(sweep.path)!r}), None)"], capture_output=True, text=True
    )
    assert "code: cannot write ([Errno 27] File too large" in done.stderr
    assert list((sweep.home / "code").iterdir()) == []


def test_a_full_disk_is_told(sweep, monkeypatch):
    """/dev/full, which refuses every byte as a full disk does."""
    sweep.home.mkdir(parents=True)
    monkeypatch.setattr("harness.run.jsonl.open_own", lambda path, mode: open("/dev/full", mode))  # noqa: SIM115
    with pytest.raises(UserError, match=r"\.sweep: cannot write \(No space left on device\); free some space"):
        planned(sweep, "a")


def test_brackets_in_names_and_errors_are_shown(sweep, capsys):
    """As an arm that has a list has them, and an error of torch.save; rich would take them for its markup."""
    sweep.log("planned", ["a"], arm="bf16 ppo loss.extra=[bold]", seed=0, steps=10, cost="")
    sweep.log("ended", ["a"], state="interrupted", job="local", error="torch.save: [enforce fail] " + "x" * 200)
    status(sweep.path)
    shown = capsys.readouterr().out
    assert shown.count("loss.extra=[bold]") == 2 and "torch.save: [enforce fail] " + "x" * 200 in shown


def test_status_of_two_thousand_runs_takes_a_few_hundred_calls_each(sweep, capsys):
    """Function calls, C's too, which no clock or load changes. A look at every run for every run would take thousands."""
    runs = [f"{i:012x}" for i in range(2000)]
    for i, run in enumerate(runs):
        sweep.log("planned", [run], arm=f"arm {i % 20}", seed=i // 20, steps=280, cost="")
    sweep.log("submitted", runs, batch="")
    sweep.log("started", runs, job="local", host="n1", pid=1, step=0)
    sweep.log("ended", runs[:1999], state="done", job="local", steps=280, seconds=100.0)
    for run in runs:
        sweep.folder(run).path.mkdir()
        sweep.folder(run).status("done")
    profile = cProfile.Profile()
    profile.runcall(status, sweep.path)
    assert "2000 runs, 2000 done" in capsys.readouterr().out
    assert sum(entry.callcount for entry in profile.getstats()) < 2000 * 300
