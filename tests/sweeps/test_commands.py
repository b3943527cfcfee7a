"""`faultline sweep status|logs|cancel|retry`, without any scheduler."""

import contextlib
import cProfile
import os
import platform
import time

import pytest

from harness.errors import UserError
from sweeps.commands import cancel, logs, retry, status
from sweeps.launch import launch, plan
from sweeps.launchers.local import Local
from sweeps.ledger import Sweep
from sweeps.lock import LauncherLock
from tests.sweeps.conftest import planned


def test_what_was_starting_when_the_sweep_was_cancelled_does_nothing(tiny, monkeypatch):
    """This process stands for the launcher, which has begun but does not hold the lock; then for one of a later command."""
    config = tiny("seed=0")
    place = Sweep(config.path.parent)
    plan(place, {config.digest: config}, {})
    with pytest.raises(UserError, match="nothing is running; a launcher that is just starting stops by itself"):
        cancel(place.path)
    with pytest.raises(UserError, match="cancelled after this was started; give the command again"):
        launch([config], Local)
    assert place.states()[config.digest].state == "queued" and place.lock.holder() is None
    monkeypatch.setattr("sweeps.lock.STARTED", time.monotonic())
    with place.lock.hold():
        pass


def test_a_clock_put_back_after_a_cancel_refuses_no_later_launcher(sweep, monkeypatch):
    """The mark is of an hour that has yet to come. Another machine's counts if it came since the launcher began."""
    planned(sweep, "a")
    with pytest.raises(UserError, match="nothing is running"):
        cancel(sweep.path)
    os.utime(sweep.home / "cancelled", (time.time() + 3600,) * 2)
    monkeypatch.setattr("sweeps.lock.STARTED", time.monotonic())
    with sweep.lock.hold():
        pass
    later = Sweep(sweep.path)
    (sweep.home / "cancelled").write_text("another-machine 1.0\n")
    with pytest.raises(UserError, match="cancelled after this was started"), later.lock.hold():
        pass
    with Sweep(sweep.path).lock.hold():
        pass


def test_nothing_in_trouble_is_told(sweep, capsys):
    planned(sweep, "a")
    sweep.log("ended", ["a"], state="done", job="")
    retry(sweep.path, [], None)
    assert "nothing to run again, no run of it is failed, interrupted, cancelled or preempted" in capsys.readouterr().out
    logs(sweep.path, [], 5)
    assert "no run of it is failed, interrupted, cancelled or preempted; name a run by its hash" in capsys.readouterr().out


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
            patch.setattr("sweeps.lock.STARTED", time.monotonic())
            patch.setattr("psutil.Process.send_signal", lambda *given: pytest.fail(f"kill{given}"))
            with pytest.raises(UserError, match=told):
                cancel(sweep.path)


def test_a_cancelled_run_that_never_started_is_cancelled(sweep, monkeypatch, capsys):
    """The local launcher ends by SIGTERM: it enters the ends of the runs that it has started, of no other."""
    planned(sweep, "a", "b", "c")
    sweep.log("submitted", ["a", "b"], batch="")
    sweep.log("ended", ["a"], state="done", job="local")
    with sweep.lock.hold():
        monkeypatch.setattr("psutil.Process.send_signal", lambda *given: None)
        cancel(sweep.path)
    status(sweep.path)
    assert {run: state.state for run, state in sweep.states().items()} == {"a": "done", "b": "cancelled", "c": "queued"}
    assert "1 queued, 1 done, 1 cancelled" in capsys.readouterr().out


def test_brackets_in_names_and_errors_are_shown(sweep, capsys):
    """Arms with a list have them, and errors of torch.save. rich would take them for its markup."""
    sweep.log("planned", ["a"], arm="bf16 ppo loss.extra=[bold]", seed=0, steps=10, cost="")
    sweep.log("ended", ["a"], state="interrupted", job="local", error="torch.save: [enforce fail] " + "x" * 200)
    status(sweep.path)
    shown = capsys.readouterr().out
    assert shown.count("loss.extra=[bold]") == 2 and "torch.save: [enforce fail] " + "x" * 200 in shown


@pytest.mark.slow
def test_status_of_a_thousand_runs_takes_a_few_hundred_calls_each(sweep, capsys):
    """Function calls, C's too, which no clock or load changes. A look at every run for every run would take thousands."""
    runs = [f"{i:012x}" for i in range(1000)]
    for i, run in enumerate(runs):
        sweep.log("planned", [run], arm=f"arm {i % 20}", seed=i // 20, steps=280, cost="")
    sweep.log("submitted", runs, batch="")
    sweep.log("started", runs, job="local", host="n1", pid=1, step=0)
    sweep.log("ended", runs[:999], state="done", job="local", steps=280, seconds=100.0)
    for run in runs:
        sweep.folder(run).path.mkdir()
        sweep.folder(run).status("done")
    profile = cProfile.Profile()
    profile.runcall(status, sweep.path)
    assert "1000 runs, 1000 done" in capsys.readouterr().out
    assert sum(entry.callcount for entry in profile.getstats()) < 1000 * 300


@pytest.mark.parametrize("name", ["../victim", "/etc", "..", ".sweep", "a/b", "", "a\0b"])
def test_a_run_is_named_by_a_plain_folder_name(sweep, tmp_path, capsys, name):
    """A ledger is data: it names no folder outside of the sweep, neither as a run nor as a job."""
    for folder in (tmp_path / "victim", sweep.home / "jobs"):
        folder.mkdir(parents=True)
    (tmp_path / "victim" / "log.txt").write_text("secret\n")
    (tmp_path / "victim_0_log.out").write_text("secret\n")
    planned(sweep, name, "a")
    sweep.log("ended", [name], state="failed", error="", job="")
    sweep.log("started", ["a"], job=f"{name}/../../../victim", step=0)
    logs(sweep.path, [], 5)
    assert "secret" not in capsys.readouterr().out and set(sweep.states()) == {"a"} and len(sweep.damaged) == 3


@pytest.mark.parametrize("pid", [0, -1, 1, "x", "parent"])
def test_cancel_signals_no_process_but_the_launcher(sweep, monkeypatch, pid):
    """The lock is held, and a damaged or hostile file names somebody else."""
    planned(sweep, "a")
    with sweep.lock.hold():
        (sweep.home / "lock").write_text(f"{platform.node()} {os.getppid() if pid == 'parent' else pid}\n")
        monkeypatch.setattr("psutil.Process.send_signal", lambda *given: pytest.fail(f"kill{given}"))
        with pytest.raises(UserError, match=r"does not work on it|nothing is running"):
            cancel(sweep.path)


@pytest.mark.timeout(60)
def test_pipes_in_the_place_of_files_make_nobody_wait(sweep, capsys):
    """Every file that the commands read, of a run and of the sweep. A reader of a pipe would wait for ever for a writer."""
    planned(sweep, "a", "b")
    sweep.log("started", ["a"], job="7_0", host="n1", pid=1, step=0)
    sweep.log("ended", ["b"], state="failed", error="x", job="7_1")
    (sweep.home / "jobs").mkdir()
    for run in ("a", "b"):
        sweep.folder(run).path.mkdir()
    names = ("jobs/7_1_0_log.out", "lock", "cancelled", "launcher.json")
    runs = ("status.json", "config.json", "log.txt", "metrics.jsonl", "events.jsonl")
    for path in [*(sweep.home / name for name in names), *(sweep.path / run / name for run in "ab" for name in runs)]:
        os.mkfifo(path)
    again = Sweep(sweep.path)
    status(again.path)
    logs(again.path, [], 5)
    assert "1 failed, 1 interrupted" in capsys.readouterr().out
    with pytest.raises(UserError, match="nothing is running"):
        cancel(again.path)


def test_a_strangers_text_reaches_no_terminal_as_a_command(tmp_path, capsys):
    """ESC in the folder's name, an arm, an error and a log: it is shown as \\x1b. Lines of a log stay lines."""
    sweep = Sweep(tmp_path / "a\x1b[2Jb")
    sweep.log("planned", ["a", "b"], arm="arm\x1b[1m", seed=0, steps=4, cost="")
    sweep.log("ended", ["a"], state="failed", error="why\x1b[0m", job="")
    sweep.log("started", ["b"], job="local", step=0)
    sweep.folder("a").path.mkdir()
    (sweep.folder("a").path / "log.txt").write_text("one\x1b[2J\ntwo\n")
    with (sweep.home / "ledger.jsonl").open("a") as file:
        file.write("{}\n")
    status(sweep.path)
    logs(sweep.path, [], 5)
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err and "one\\x1b[2J\ntwo\n" in shown.out and "why\\x1b" in shown.out
