"""Ctrl-C and SIGKILL at the start of a run, through the local launcher: the same command always goes on."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.run.folder import RunFolder
from sweeps.launch import launch as launch_in_process
from sweeps.launch import plan
from sweeps.launchers.local import Local
from sweeps.launchers.pool import _outcome
from sweeps.ledger import Sweep
from tests.sweeps.conftest import launch, run_at_point, start
from tests.sweeps.launchers.fork_servers import kill_servers, servers, waits_for_server
from tests.waiting import PATIENCE, until


@pytest.mark.slow
def test_the_pool_loses_no_run_to_a_signal(tmp_path):
    """The real pool, fork server and processes with runs that only wait: (state, error, state of the folder) after each."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.sweeps.launchers.pool_signals", tmp_path], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    ends = json.loads(done.stdout)
    refused = ends.pop("the server is killed as it starts")
    assert refused[0] == "interrupted" and "its fork server was killed or refused it" in refused[1]
    assert ends == {
        "ctrl-c, the server starts": ["done", "", "done"],
        "ctrl-c, the run starts": ["preempted", "", "queued"],
        "ctrl-c, the run is under way": ["preempted", "", "preempted"],
        "the run is killed": ["interrupted", "killed by SIGKILL", "interrupted"],
        "the server is killed": ["interrupted", "its fork server was killed", "preempted"],
        "nothing": ["done", "", "done"],
    }


def test_a_launcher_that_dies_before_it_has_sent_a_run_leaves_no_traceback():
    """It is held between the birth of the run's process and its data, and killed there."""
    command = [sys.executable, "-m", "tests.sweeps.launchers.killed_before_data"]
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    until(lambda: any(server.children() for server in servers(launcher.pid)), lambda: launcher.poll() is None)
    launcher.kill()
    assert launcher.communicate(timeout=PATIENCE)[0] == ""  # all of its processes have ended: nobody holds the pipe


RUN = ["seed=0", "steps=10", "checkpoint.every=3"]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("signals")


def launch_and_send(place: Path, name: str, moment: str, send) -> tuple[int, str, Sweep]:
    """Start a launcher, call `send` with its process when `moment` has come, and return its exit code, output and sweep.

    A run under way stands still meanwhile, or a fast machine would end it first.
    """
    sweep = Sweep(place / name)
    point = "row 8" if moment == "the run is under way" else ""
    process = start(place, *RUN, f"run.sweep={name}", point=point)
    if moment == "the server starts":
        until(lambda: waits_for_server(process.pid))
    elif moment == "the run starts":
        until(lambda: any(event["event"] == "started" for event in sweep.events()))
    else:
        run = run_at_point(sweep)
    send(process.pid)
    if moment == "the run is under way":
        run.goes_on()
    output, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, output, sweep


def finishes(place: Path, sweep: Sweep) -> None:
    code, output = launch(place, *RUN, f"run.sweep={sweep.path.name}")
    assert code == 0, output
    (state,) = sweep.states().values()
    (run,) = sweep.states()
    assert state.state == sweep.folder(run).state == "done" and len(sweep.folder(run).metrics()) == 11


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["the server starts", "the run starts"])
def test_ctrl_c_at_the_start_leaves_a_run_that_goes_on(place, moment):
    """A terminal sends SIGINT to the launcher, the fork server and the run at once."""
    name = f"ctrl-c-when-{moment.replace(' ', '-')}"
    code, output, sweep = launch_and_send(place, name, moment, lambda pid: os.killpg(pid, signal.SIGINT))
    assert code == 130 and "Traceback" not in output, output
    assert [state.state for state in sweep.states().values()] in (["preempted"], ["submitted"])
    assert "KeyboardInterrupt" not in "".join(path.read_text() for path in sweep.path.glob("*/log.txt"))
    finishes(place, sweep)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["the server starts", "the run is under way"])
def test_a_killed_fork_server_leaves_runs_that_go_on(place, moment):
    name = f"killed-when-{moment.replace(' ', '-')}"
    code, output, sweep = launch_and_send(place, name, moment, kill_servers)
    assert code == 1 and "Traceback" not in output and "exit code 255" not in output, output
    (state,) = sweep.states().values()
    assert state.state == "interrupted" and "fork server was killed" in state.error and "the same command retries it" in output
    finishes(place, sweep)


def test_a_killed_run_that_was_taken_up_again_and_not_started_is_not_failed(tiny, capsys):
    """Its folder still tells the end of its former process."""
    config = tiny()
    sweep = Sweep(config.path.parent)
    plan(sweep, {config.digest: config}, {})
    folder = sweep.folder(config.digest)
    folder.status("running", step=2, steps=4)
    assert _outcome(folder, -signal.SIGKILL) == ("interrupted", "killed by SIGKILL")
    sweep.log("submitted", [config.digest], batch="")
    end = sweep.state_from_folder(config.digest, sweep.states()[config.digest], "its launcher is gone")
    assert (end.state, end.error) == ("interrupted", "killed by SIGKILL")


@pytest.mark.parametrize("code", [-signal.SIGINT, -signal.SIGTERM, 130, 143])
def test_a_signal_after_the_end_takes_nothing_back(tiny, code):
    folder = RunFolder(tiny().path)
    folder.path.mkdir(parents=True)
    folder.status("running", step=0, steps=4)
    assert _outcome(folder, code) == ("preempted", "")
    folder.status("done", step=4, steps=4)
    assert _outcome(folder, code) == ("done", "")


def test_a_run_finished_without_the_launcher_is_done(tiny, capsys):
    """The launcher starts nothing, and ends well."""
    configs = [tiny(f"seed={seed}") for seed in (0, 1)]
    for config, state in zip(configs, ("done", "collapsed"), strict=True):
        config.path.mkdir(parents=True)
        RunFolder(config.path).status(state, step=4, steps=4)
    states = launch_in_process(configs, Local)
    assert [states[config.digest].state for config in configs] == ["done", "collapsed"]
    assert "2 done, 0 failed by themselves and are left, 0 under way, none to start" in capsys.readouterr().err
