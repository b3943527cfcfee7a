"""Runs side by side on one machine, one process and one thread each: for the local launcher, and inside a Slurm job.

The processes are forked from a server that has imported torch, transformers and DeepSpeed, so the start-up is paid once.
A run that fails leaves the others alone. A run that was cut short resumes from its folder.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from harness.errors import Unavailable, UserError
from harness.run.folder import RunFolder
from sweeps.launchers.orphans import end_with_parent
from sweeps.ledger import Sweep, is_claimed
from sweeps.states import STUCK

PRELOADED = ["sweeps.launchers.preloaded"]
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
FORMER_LIFE = 60
"""Seconds that a run waits for its folder: a requeued job may start before its former processes have ended."""
UNAVAILABLE = os.EX_TEMPFAIL
"""Exit code of a run that its surroundings refused: 75."""


class _Started(NamedTuple):
    process: BaseProcess
    step: int
    time: float


class Pool:
    """Processes of one sweep on one machine. job: its name in the ledger."""

    def __init__(self, sweep: Sweep, parallel: int, job: str):
        os.environ["OMP_NUM_THREADS"] = "1"  # the forked runs inherit it
        self.sweep, self.parallel, self.job = sweep, parallel, job
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOADED)
        self.running: dict[str, _Started] = {}
        self.stopping = False
        self.began = False

    def run(self, runs: list[str], tick: Callable[[], None] = lambda: None) -> None:
        """Run them, `parallel` at a time, until each has ended or the pool is stopping."""
        waiting = list(runs)
        while (waiting and not self.stopping) or self.running:
            while waiting and len(self.running) < self.parallel and not self.stopping:
                self._start(waiting.pop(0))
            time.sleep(0.1)
            for run, started in list(self.running.items()):
                if not started.process.is_alive():
                    del self.running[run]
                    self._log_outcome(run, started)
            tick()

    def stop(self) -> None:
        """Ask each run to save a checkpoint and stop, and wait for that."""
        self.stopping = True
        for started in self.running.values():
            started.process.terminate()
        for run, started in list(self.running.items()):
            started.process.join()
            self.running.pop(run, None)
            self._log_outcome(run, started)

    def _start(self, run: str) -> None:
        folder = self.sweep.folder(run)
        step, state = folder.checkpointed, self.sweep.states().get(run)
        if state and state.state == "cancelled":  # while this task was about to start
            return
        if state and state.starts >= STUCK and state.step == step:
            error = (
                f"started {STUCK} times from step {step} and stopped each time before the next checkpoint: give it more time "
                "(hydra.launcher.timeout_min), save more often (checkpoint.every), or `faultline sweep retry` if others "
                "took its place"
            )
            self._log_end(run, "failed", error=error)
            return
        try:
            config = self.sweep.config(run)
        except UserError as error:  # this run alone fails; the others start
            self._log_end(run, "failed", error=str(error))
            return
        arguments = (config.model_dump_json(), str(folder.path / "log.txt"))
        process = self.context.Process(target=run_in_child, args=arguments, name=run)
        process.start()
        self.began = True
        node = os.environ.get("SLURMD_NODENAME") or platform.node()
        self.sweep.log("started", [run], job=self.job, host=node, pid=process.pid, step=step)
        self.running[run] = _Started(process, step, time.time())

    def _log_outcome(self, run: str, started: _Started) -> None:
        folder = self.sweep.folder(run)
        state, error = _outcome(folder, started.process.exitcode or 0)
        if state == "preempted":
            self.stopping = True  # whoever stops one of our runs wants the machine
        steps, seconds = folder.checkpointed - started.step, round(time.time() - started.time, 2)
        self._log_end(run, state, error=error, steps=steps, seconds=seconds)

    def _log_end(self, run: str, state: str, **more: Any) -> None:
        with suppress(UserError):  # a full disk: the folder says it, or the absence of an end
            self.sweep.log("ended", [run], state=state, job=self.job, **more)


def run_in_child(config_json: str, log: str) -> None:
    """Train one run in a process that the fork server has forked."""
    for number in (signal.SIGTERM, signal.SIGUSR2):  # the server ignores them
        signal.signal(number, signal.SIG_DFL)
    end_with_parent(signal.SIGTERM)
    for _ in range(FORMER_LIFE):
        if not is_claimed(RunFolder(os.path.dirname(log))):
            break
        time.sleep(1)
    _train(config_json, log)


def follow(sweep: Sweep, run: str) -> None:
    """For the ranks above 0 of a Slurm task: work on the run that rank 0 starts."""
    _train(sweep.config(run).model_dump_json(), str(sweep.folder(run).path / "log.txt"))


def _train(config_json: str, log: str) -> None:
    """Train, with the output in the file `log`."""
    with open(log, "a", buffering=1) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    from harness.config import Config
    from harness.run.loop import train

    try:
        train(Config.model_validate_json(config_json))
    except UserError as error:
        print(error, file=sys.stderr)
        raise SystemExit(UNAVAILABLE if isinstance(error, Unavailable) else 2) from None


def _outcome(folder: RunFolder, code: int) -> tuple[str, str]:
    """(state, one of states.ENDS; error) of a run whose process ended with `code`."""
    if code == 0:
        return folder.state, ""
    if code in [128 + number for number in STOPPING] or -code in STOPPING:
        return "preempted", ""
    if code > 0:
        return "interrupted" if code == UNAVAILABLE else "failed", f"{last_lines(folder, 1)} (exit code {code})"
    cause = f"killed by {signal.Signals(-code).name}"
    with suppress(UserError), folder.claim():  # not if another launcher's process holds the folder
        if folder.state == "running":  # it was killed before it could write its end
            folder.status("failed", **folder.progress(), error=cause)
    return "interrupted", cause


def last_lines(folder: RunFolder, count: int) -> str:
    """The end of a run's log."""
    log = folder.path / "log.txt"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-count:])
