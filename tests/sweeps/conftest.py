"""Shared by the tests of sweeps: an empty sweep, started launchers, runs that stand still, a real Slurm of two nodes."""

import fcntl
import io
import logging
import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from experiments.train import main as train_command
from harness.run.folder import RunFolder
from sweeps.ledger import Sweep
from tests.harness.conftest import TINY, root, tiny  # noqa: F401 (fixtures)
from tests.waiting import PATIENCE, until

LOCAL = Path(__file__).parents[2] / "slurm" / "local"


@pytest.fixture(scope="session")
def slurm(tmp_path_factory):
    """Its home; SLURM_CONF is set. Two nodes of three cores each; an array holds at most 20 tasks.

    Each worker of xdist has one of its own. They start one at a time, for one may install Slurm, and each looks for free ports.
    The ids of their jobs differ, since tests look for processes by them.
    """
    home = tmp_path_factory.mktemp("slurm")
    size = {"SLURM_HOME": str(home), "NODES": "2", "CPUS": "3", "MAX_ARRAY": "20", "GRACE": "15"}
    size["FIRST_JOB"] = str(os.getpid() % 60_000 * 1000 + 1)
    with open(LOCAL / "up.sh") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
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


@pytest.fixture
def sweep(tmp_path) -> Sweep:
    return Sweep(tmp_path / "sweep")


def planned(sweep: Sweep, *runs: str) -> None:
    """Enter runs into the ledger that have no folder."""
    sweep.log("planned", runs, arm="bf16 ppo", seed=0, steps=10, cost="")


def start(parent: Path, *overrides: str, launcher="local", point="") -> subprocess.Popen:
    """A started multirun of tiny runs, in a process group of its own. point: where its runs stand still."""
    module = ["tests.sweeps.launchers.held_train", point] if point else ["experiments.train"]
    return subprocess.Popen(
        [sys.executable, "-m", *module, "-m", f"hydra/launcher={launcher}", *TINY, f"run.root={parent}", *overrides],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def launch(parent: Path, *overrides: str, launcher="local") -> tuple[int, str]:
    """The exit code and output of a multirun that has ended.

    Its command runs in this process, and its runs in processes of their own. So launcher and fork server import torch and
    DeepSpeed once in a session, and not for each launch. `start` gives the command a process too.
    """
    return in_process("-m", f"hydra/launcher={launcher}", *TINY, f"run.root={parent}", *overrides)


def in_process(*words: str) -> tuple[int, str]:
    """The exit code and output of `python -m experiments.train WORDS...`, called in this process.

    What the command and Hydra change of the process is put back: its arguments, environment and the root logger.
    """
    told, code, logger = io.StringIO(), 0, logging.getLogger()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(told), redirect_stderr(told):
        patch.setattr(sys, "argv", [sys.argv[0]])
        patch.setenv("HYDRA_FULL_ERROR", "1")
        patch.setattr(logger, "handlers", [])
        patch.setattr(logger, "level", logger.level)
        try:
            train_command([*words])
        except SystemExit as end:
            code = end.code or 0
    return code, told.getvalue()


SLURM = ["hydra.launcher.mem_gb=1", "hydra.launcher.signal_delay_s=5"]
"""For jobs of tiny runs."""


def launch_on_slurm(parent: Path, *overrides: str) -> tuple[int, str]:
    """The exit code and output of a multirun on Slurm that has ended, or that has submitted its jobs if it is detached."""
    return launch(parent, *SLURM, *overrides, launcher="slurm")


@pytest.fixture(scope="session")
def multirun(shared_root):
    """multirun("key=value", ...) -> a started multirun on Slurm below `shared_root`, which is killed in the end."""
    started = []

    def begin(*overrides: str) -> subprocess.Popen:
        started.append(start(shared_root, *SLURM, *overrides, launcher="slurm"))
        return started[-1]

    yield begin
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
    """Output of the task's own process so far."""
    path = sweep.home / "jobs" / f"{job}_0_log.out"
    return path.read_text(errors="replace") if path.exists() else ""


def search_spec(parent: Path, **more: Any) -> dict[str, Any]:
    """The values of a search of tiny runs, for a YAML file."""
    common = {"root": str(parent), "seeds": 2, "last": 3, "confidence": 0.9, "prune": {"fraction": 0.5, "patience": 3}}
    return common | {"winner_seeds": 2, "sampler_seed": 0} | more


class Held(NamedTuple):
    """A run that stands still, so that a signal finds it under way on any machine."""

    job: str
    host: str
    pid: int

    def goes_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


def run_at_point(sweep: Sweep) -> Held:
    """The one run of a sweep, once it stands still at the point that `start` named."""
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
