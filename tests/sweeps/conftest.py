"""A real Slurm of two nodes, brought up once for the tests that need it."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from harness.run.folder import RunFolder
from sweeps.ledger import Sweep
from tests.harness.conftest import TINY, root, tiny  # noqa: F401 (fixtures)
from tests.waiting import PATIENCE, until

LOCAL = Path(__file__).parents[2] / "slurm" / "local"


@pytest.fixture(scope="session")
def slurm(tmp_path_factory):
    """Its home; SLURM_CONF is set. Two nodes of three cores each; an array holds at most 20 tasks."""
    home = tmp_path_factory.mktemp("slurm")
    size = {"SLURM_HOME": str(home), "NODES": "2", "CPUS": "3", "MAX_ARRAY": "20", "GRACE": "15"}
    up = subprocess.run([LOCAL / "up.sh"], env={**os.environ, **size}, capture_output=True, text=True)
    assert up.returncode == 0, up.stderr
    os.environ["SLURM_CONF"] = str(home / "slurm.conf")
    yield home
    subprocess.run([LOCAL / "down.sh"], env={**os.environ, **size}, check=True, timeout=60)
    del os.environ["SLURM_CONF"]


@pytest.fixture(scope="session")
def shared_root(tmp_path_factory) -> Path:
    """One root for all sweeps of the session: one warm start."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="session")
def multirun(shared_root):
    """multirun("slurm", "key=value", ...) -> a started `python -m experiments.train -m` of tiny runs; `output` waits for it."""
    started = []

    def start(launcher: str, *overrides: str) -> subprocess.Popen:
        command = [
            sys.executable,
            "-m",
            "experiments.train",
            "-m",
            f"hydra/launcher={launcher}",
            *TINY,
            f"run.root={shared_root}",
        ]
        if launcher == "slurm":
            command += ["hydra.launcher.mem_gb=1", "hydra.launcher.signal_delay_s=5"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = subprocess.Popen([*command, *overrides], start_new_session=True, **pipes)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()


def output(process: subprocess.Popen) -> str:
    """All that it printed, once it has ended."""
    return process.communicate(timeout=PATIENCE)[0]


def rows(folder: RunFolder) -> int:
    path = folder.path / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def by_seed(sweep: Sweep, **only) -> dict[int, str]:
    """Runs of the sweep by seed; only: keys of `evaluation` that they must have."""
    configs = {run: sweep.config(run) for run in sweep.states()}
    return {c.seed: run for run, c in configs.items() if all(getattr(c.evaluation, k) == v for k, v in only.items())}


def started(sweep: Sweep, run: str) -> list[dict]:
    return [event for event in sweep.events() if event["event"] == "started" and event["run"] == run]


def task_log(sweep: Sweep, job: str) -> str:
    """What the task's own process has printed."""
    path = sweep.home / "jobs" / f"{job}_0_log.out"
    return path.read_text(errors="replace") if path.exists() else ""


class Held(NamedTuple):
    """A run that stands still, so that a blow finds it under way on any machine."""

    job: str
    host: str
    pid: int

    def goes_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


def standing(sweep: Sweep) -> Held:
    """The one run of a sweep, once it stands still at the point that its launch named."""
    until(sweep.states)
    (run,) = sweep.states()
    until(lambda: started(sweep, run))
    event = started(sweep, run)[-1]
    until(lambda: psutil.Process(event["pid"]).status() == psutil.STATUS_STOPPED)
    return Held(event["job"], event["host"], event["pid"])


def held(sweep: Sweep, runs: list[str]) -> list[Held]:
    """The runs, each held after its ninth step or a later one."""
    found: dict[str, Held] = {}

    def look() -> bool:
        for run in set(runs) - found.keys():
            if rows(sweep.folder(run)) > 8:
                event = started(sweep, run)[-1]
                found[run] = Held(event["job"], event["host"], event["pid"])
                os.kill(event["pid"], signal.SIGSTOP)
        return len(found) == len(runs)

    until(look)
    return [found[run] for run in runs]
