"""The local launcher, which executes the runs of a sweep in parallel on this machine."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

from sweeps.launchers.pool import Pool
from sweeps.ledger import Sweep, is_claimed
from sweeps.states import RunState


class Local:
    """Executor of a sweep's runs on this machine. parallel: number of runs at a time; None: one per physical core."""

    ranks = 1
    detach = False

    def __init__(self, sweep: Sweep, parallel: int | None = None):
        self.sweep, self.parallel = sweep, parallel or psutil.cpu_count(logical=False) or 1
        self.pool = Pool(sweep, self.parallel, job="local")
        self.waiting: list[str] = []
        self.terminated = False
        """Whether the launcher has received SIGTERM."""

    @property
    def stopped(self) -> bool:
        """Whether a signal that the launcher did not send stopped a run, upon which the launcher stopped all runs."""
        return self.pool.stopping

    def prepare(self) -> dict[str, Any]:
        """Prepare nothing. Return the settings of this launcher, with which the launch can be repeated."""
        return {"launcher": "local", "parallel": self.parallel}

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Context manager around the runs. After an error or a signal it makes each run save a checkpoint and stop."""
        before = signal.signal(signal.SIGTERM, self._terminate)
        try:
            yield
        except BaseException as error:
            self._stop()
            if isinstance(error, KeyboardInterrupt):
                print("\nThe runs have saved a checkpoint; the same command goes on.", file=sys.stderr)
            raise
        finally:
            signal.signal(signal.SIGTERM, before)

    def _terminate(self, *_: Any) -> None:
        self.terminated = True
        sys.exit(128 + signal.SIGTERM)

    def describe(self, count: int) -> str:
        """Describe, for the user, how `count` runs will be executed."""
        return f"{count} to run, {min(self.parallel, count)} at a time"

    def look(self) -> tuple[dict[str, RunState], set[str]]:
        """Return (state of every run, runs that wait or are under way), among these any that a killed launcher left running."""
        states = self.sweep.states()
        live = {*self.waiting, *self.pool.running}
        for run, state in states.items():
            if run not in live and state.state in ("submitted", "running"):
                if is_claimed(self.sweep.folder(run)):
                    live.add(run)
                else:
                    states[run] = self.sweep.state_from_folder(run, state, "its launcher is gone")
        return states, live

    def submit(self, runs: list[str]) -> None:
        """Submit `runs`: start as many as there is room for, and queue the rest. Raises UserError if the sweep was cancelled."""
        self.sweep.lock.check_cancelled()
        self.sweep.log("submitted", runs, batch="")
        self.waiting += runs
        self.pool.fill(self.waiting)

    def cancel(self, runs: list[str]) -> None:
        """Stop each run in `runs` that is running, and remove each one that waits."""
        stopped = [run for run in runs if run in self.pool.running or run in self.waiting]
        self.sweep.log("cancelled", stopped)
        self.waiting = [run for run in self.waiting if run not in runs]
        self.pool.cancel(stopped)

    def wait(self, seconds: float) -> bool:
        """Wait until a run ends, at most `seconds`, then start queued runs while there is room. Returns whether a run ended."""
        if self.terminated:  # Python drops an exception that a handler raises within a finalizer
            self._terminate()
        end, before = time.monotonic() + seconds, set(self.pool.running)
        while time.monotonic() < end and before <= self.pool.running.keys():
            time.sleep(0.05)
            self.pool.settle()
        if self.stopped:
            self._stop()
        self.pool.fill(self.waiting)
        return not before <= self.pool.running.keys()

    def _stop(self) -> None:
        self.waiting.clear()
        self.pool.stop()
