"""Parallel runs on one machine, each in a process with one thread, for the local launcher and inside a Slurm job.

A fork server starts the processes. It has imported torch and DeepSpeed unless the machine has a GPU. A run that fails does not
affect the others. A run that was stopped resumes from the checkpoint in its folder.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from harness.errors import Unavailable, UserError, first_line
from harness.files import open_own, writing
from harness.run import jsonl
from harness.run.folder import FINISHED, RunFolder
from sweeps.launchers.orphans import end_with_parent
from sweeps.ledger import Sweep, is_claimed
from sweeps.states import STUCK

PRELOADED = ["sweeps.launchers.preloaded"]
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
FORMER_LIFE = 60
"""Maximum seconds that a run waits for the lock of its folder, which a process from before a requeue may still hold."""
UNAVAILABLE = os.EX_TEMPFAIL
"""Exit code 75 of a run that stopped for an external cause, such as a full disk."""
ORPHANED = 255
"""Exit code that multiprocessing reports for a run whose fork server was killed. The run itself may still save and stop."""


class _Started(NamedTuple):
    process: BaseProcess
    step: int
    began: float


class Pool:
    """Executes a sweep's runs on this machine, `parallel` at a time, each forked. job: name of their job in the sweep's log."""

    def __init__(self, sweep: Sweep, parallel: int, job: str):
        os.environ["OMP_NUM_THREADS"] = "1"  # the forked runs inherit it
        self.sweep, self.parallel, self.job = sweep, parallel, job
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOADED)
        self.running: dict[str, _Started] = {}
        self.cancelled: set[str] = set()
        self.stopping = False
        self.began = False

    def run(self, runs: list[str], tick: Callable[[], None] = lambda: None) -> None:
        """Execute `runs`, `parallel` at a time, until all have ended or the pool is stopping. tick: called every 0.1 s."""
        waiting = list(runs)
        while (waiting and not self.stopping) or self.running:
            self.fill(waiting)
            time.sleep(0.1)
            self.settle()
            tick()

    def fill(self, waiting: list[str]) -> None:
        """Start runs from the list `waiting` while there is room, and remove them from it."""
        while waiting and len(self.running) < self.parallel and not self.stopping:
            self._start(waiting.pop(0))

    def cancel(self, runs: Iterable[str]) -> None:
        """Ask each run in `runs` that is running to stop. The pool continues with the others."""
        for run in self.running.keys() & set(runs):
            self.cancelled.add(run)
            self.running[run].process.terminate()

    def stop(self) -> None:
        """Ask every run to save a checkpoint and stop, and wait until all have stopped."""
        self.stopping = True
        for started in self.running.values():
            started.process.terminate()
        while self.running:
            self.settle()
            time.sleep(0.02)

    def settle(self) -> None:
        """Remove the runs whose processes have ended from the running ones, and write their ends into the sweep's log."""
        for run, started in list(self.running.items()):
            if started.process.is_alive():
                continue
            if started.process.exitcode != ORPHANED or not is_claimed(self.sweep.folder(run)):  # else it outlives the server
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
        with _held_back(STOPPING):
            forkserver.ensure_running()  # it inherits what is held back
        try:
            process.start()
        except (EOFError, OSError) as error:  # a run that was forked all the same ends with its server
            self._log_end(run, "interrupted", error=f"its fork server was killed or refused it ({first_line(error)})")
            return
        self.began = True
        self.cancelled.discard(run)
        node = os.environ.get("SLURMD_NODENAME") or platform.node()
        self.sweep.log("started", [run], job=self.job, host=node, pid=process.pid, step=step)
        self.running[run] = _Started(process, step, time.monotonic())

    def _log_outcome(self, run: str, started: _Started) -> None:
        folder = self.sweep.folder(run)
        state, error = _outcome(folder, started.process.exitcode or 0)
        if state == "preempted" and run not in self.cancelled:
            self.stopping = True  # whoever stops one of our runs wants the machine
        steps, seconds = folder.checkpointed - started.step, round(time.monotonic() - started.began, 2)
        self._log_end(run, state, error=error, steps=steps, seconds=seconds)

    def _log_end(self, run: str, state: str, **more: Any) -> None:
        with suppress(UserError):  # a full disk: the folder says it, or the absence of an end
            self.sweep.log("ended", [run], state=state, job=self.job, **more)


@contextmanager
def _held_back(numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Context manager that delays the signals `numbers` until its `with` block has ended."""
    resource_tracker.ensure_running()  # multiprocessing would start it within the body, and let SIGINT and SIGTERM through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_in_child(config_json: str, log: str) -> None:
    """Train a run in a forked process, its output in the file `log`. Unblocks the signals that the fork server blocks."""
    for number in STOPPING:  # until the run catches them, they end it where it is
        signal.signal(number, signal.SIG_DFL)
    end_with_parent(signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    end = time.monotonic() + FORMER_LIFE
    while is_claimed(RunFolder(os.path.dirname(log))) and time.monotonic() < end:
        time.sleep(0.1)
    _train(config_json, log)


def follow(sweep: Sweep, run: str) -> None:
    """Do the work of a rank other than 0 of a Slurm task: train the run `run`, which rank 0 starts."""
    _train(sweep.config(run).model_dump_json(), str(sweep.folder(run).path / "log.txt"))


def _train(config_json: str, log: str) -> None:
    """Train a run, its output in the file `log`. Exit with code `UNAVAILABLE` on an external cause, or 2 on a user's error."""
    try:
        with writing(Path(log)), open_own(Path(log), "a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        from harness.config import Config
        from harness.run.loop import train

        train(Config.model_validate_json(config_json))
    except UserError as error:
        print(error, file=sys.stderr)
        raise SystemExit(UNAVAILABLE if isinstance(error, Unavailable) else 2) from None


def _outcome(folder: RunFolder, code: int) -> tuple[str, str]:
    """Return (final state, error) of a run by its folder and exit code, and mark the folder of a killed run as interrupted."""
    with suppress(UserError):
        if code == 0 or folder.state in FINISHED:  # a signal may still end a process that has nothing left to do
            return folder.state, ""
    if code in [128 + number for number in STOPPING] or -code in STOPPING:
        return "preempted", ""
    if 0 < code < ORPHANED:
        return "interrupted" if code == UNAVAILABLE else "failed", f"{last_lines(folder, 1)} (exit code {code})"
    cause = "its fork server was killed" if code == ORPHANED else f"killed by {_name(-code)}"
    if folder.path.exists():
        with suppress(UserError), folder.claim():  # not if another launcher's process holds the folder
            if folder.state == "running":  # it was killed before it could write its end
                folder.status("interrupted", **folder.progress(), error=cause)
    return "interrupted", cause


def _name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def last_lines(folder: RunFolder, count: int) -> str:
    """The last `count` lines of a run's log.txt; "" if it cannot be read."""
    return last_of(folder.path / "log.txt", count)


def last_of(path: Path, count: int) -> str:
    """The last `count` lines of a text file; "" if it cannot be read."""
    with suppress(OSError):
        return "\n".join(jsonl.content(path).decode(errors="replace").splitlines()[-count:])
    return ""
