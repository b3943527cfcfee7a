"""Many runs side by side on one machine, one process and one thread each: the local launcher, and the inside of a Slurm job.

The processes are forked from a server that has imported torch, transformers and DeepSpeed, so that start-up is paid once. A run
that fails leaves the others alone; one that was cut short resumes from its folder.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from harness.errors import Unavailable, UserError
from harness.run.folder import RunFolder
from sweeps.launchers.orphans import end_with_parent
from sweeps.ledger import STUCK, RunState, Sweep, claimed

PRELOADED = ["sweeps.launchers.preloaded"]
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
FORMER_LIFE = 60
"""Seconds for which a run waits for its folder: a requeued job may start before the processes of its former life have ended."""
UNAVAILABLE = os.EX_TEMPFAIL
"""Exit code of a run that its surroundings refused: 75."""


class Local:
    """Executor of the local launcher: `parallel` runs at a time, on this machine."""

    def __init__(self, parallel: int):
        self.parallel = parallel

    def prepare(self, sweep: Sweep) -> dict[str, Any]:
        """What `relaunch` needs to make the like of it."""
        return {"launcher": "local", "parallel": self.parallel}

    def active(self, sweep: Sweep, states: dict[str, RunState]) -> dict[str, str]:
        """Runs that some process has under way, which this launcher must leave alone, and what has them."""
        suspects = [run for run, state in states.items() if state.state in ("running", "submitted")]
        return {run: "another process" for run in suspects if claimed(sweep.folder(run))}

    def describe(self, count: int) -> str:
        return f"{count} to run, {min(self.parallel, count)} at a time"

    def run(self, sweep: Sweep, runs: list[str], tick: Callable[[], None]) -> bool:
        """Run them all, wait for those of other processes, and go on with what these leave unfinished; returns when all has
        ended. A signal to this process stops its runs at a checkpoint, and raises."""
        others = self.active(sweep, sweep.states())
        sweep.log("submitted", runs, batch="")
        pool = Pool(sweep, self.parallel, job="local")
        with _stopped_together(pool):
            pool.run(runs, tick)
            while not pool.stopping and any(claimed(sweep.folder(run)) for run in others):
                tick()
                time.sleep(0.1)
            states = sweep.states()
            left = [run for run in others if sweep.settle(run, states[run], "").state in ("interrupted", "preempted")]
            sweep.log("submitted", left, batch="")
            pool.run(left, tick)
        return True


class _Started(NamedTuple):
    process: BaseProcess
    step: int
    time: float


class Pool:
    """Processes of one sweep on one machine. job: what the ledger says has them."""

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
                    self._ended(run, started)
            tick()

    def stop(self) -> None:
        """Ask each run to save a checkpoint and stop, and wait for that."""
        self.stopping = True
        for started in self.running.values():
            started.process.terminate()
        for run, started in list(self.running.items()):
            started.process.join()
            self.running.pop(run, None)
            self._ended(run, started)

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
            self._tell(run, "failed", error=error)
            return
        try:
            config = self.sweep.config(run)
        except UserError as error:  # its own affair: the others start
            self._tell(run, "failed", error=str(error))
            return
        arguments = (config.model_dump_json(), str(folder.path / "log.txt"))
        process = self.context.Process(target=_run_one, args=arguments, name=run)
        process.start()
        self.began = True
        node = os.environ.get("SLURMD_NODENAME") or platform.node()
        self.sweep.log("started", [run], job=self.job, host=node, pid=process.pid, step=step)
        self.running[run] = _Started(process, step, time.time())

    def _ended(self, run: str, started: _Started) -> None:
        state, error = _outcome(self.sweep.folder(run), started.process.exitcode)
        if state == "preempted":
            self.stopping = True  # whoever stops a run of ours wants the machine
        steps = self.sweep.folder(run).checkpointed - started.step
        self._tell(run, state, error=error, steps=steps, seconds=round(time.time() - started.time, 2))

    def _tell(self, run: str, state: str, **more) -> None:
        with suppress(UserError):  # a full disk: the folder tells, or the absence of an end
            self.sweep.log("ended", [run], state=state, job=self.job, **more)


def _run_one(config_json: str, log: str) -> None:
    """In the child."""
    for number in (signal.SIGTERM, signal.SIGUSR2):  # the server ignores them
        signal.signal(number, signal.SIG_DFL)
    end_with_parent(signal.SIGTERM)
    for _ in range(FORMER_LIFE):
        if not claimed(RunFolder(os.path.dirname(log))):
            break
        time.sleep(1)
    _train(config_json, log)


def follow(sweep: Sweep, run: str) -> None:
    """For the ranks above 0 of a task: this process works on the run that rank 0 starts, and has no say."""
    _train(sweep.config(run).model_dump_json(), str(sweep.folder(run).path / "log.txt"))


def _train(config_json: str, log: str) -> None:
    """The run, its output in the run folder."""
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
    """(state, one of ledger.ENDS; error) of a run whose process ended with `code`."""
    if code == 0:
        return folder.state, ""
    if code in [128 + number for number in STOPPING] or -code in STOPPING:
        return "preempted", ""
    if code > 0:
        return "interrupted" if code == UNAVAILABLE else "failed", f"{last_lines(folder, 1)} (exit code {code})"
    cause = f"killed by {signal.Signals(-code).name}"
    with suppress(UserError), folder.claim():  # not if another launcher's process holds the folder
        if folder.state == "running":  # it died without a word
            folder.status("failed", **folder.progress(), error=cause)
    return "interrupted", cause


def last_lines(folder: RunFolder, count: int) -> str:
    """The end of a run's log."""
    log = folder.path / "log.txt"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-count:])


@contextmanager
def _stopped_together(pool: Pool) -> Iterator[None]:
    """Ctrl-C or SIGTERM to the launcher asks each run to save a checkpoint and stop, and waits for that."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    except BaseException:
        pool.stop()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
