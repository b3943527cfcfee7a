"""Where the runs of a search run: as jobs of Slurm, or on this machine. Both keep the same ledger."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import psutil

from harness.errors import UserError
from sweeps.launchers.local import Local, stopped_together
from sweeps.launchers.options import SlurmOptions
from sweeps.launchers.pool import Pool
from sweeps.launchers.slurm import Slurm
from sweeps.launchers.squeue import cancel_jobs, jobs, jobs_by_run, leave_jobs_running, merge_states
from sweeps.ledger import Sweep, is_claimed
from sweeps.states import RunState


class Place(Protocol):
    """`OnSlurm` or `Here`. ranks: processes of a run."""

    ranks: int

    def prepare(self) -> dict[str, Any]:
        """See `sweeps.launchers.executor.Executor`."""

    def attached(self) -> AbstractContextManager[None]:
        """Around all of the search: what Ctrl-C does to the runs."""

    def look(self) -> tuple[dict[str, RunState], set[str]]:
        """(the state of every run, the runs that are waiting or under way). Raises squeue.NoAnswer if that cannot be known."""

    def submit(self, runs: list[str]) -> None:
        """Have them run."""

    def cancel(self, runs: list[str]) -> None:
        """Stop those of them that are waiting or under way."""

    def wait(self, seconds: float) -> None:
        """Let the runs go on for at most so long."""


class OnSlurm:
    """Jobs of Slurm. Ctrl-C leaves them running."""

    def __init__(self, sweep: Sweep, options: SlurmOptions):
        self.sweep, self.slurm, self.ranks = sweep, Slurm(options), options.ranks

    def prepare(self) -> dict[str, Any]:
        """See `Place`."""
        return self.slurm.prepare(self.sweep)

    def attached(self) -> AbstractContextManager[None]:
        """See `Place`."""
        return leave_jobs_running(self.sweep)

    def look(self) -> tuple[dict[str, RunState], set[str]]:
        """See `Place`."""
        tasks = jobs(self.sweep)
        live = {run for run, job in jobs_by_run(self.sweep, tasks).items() if job.live}
        return merge_states(self.sweep, self.sweep.states(), tasks), live

    def submit(self, runs: list[str]) -> None:
        """See `Place`."""
        self.slurm.submit(self.sweep, runs)

    def cancel(self, runs: list[str]) -> None:
        """See `Place`."""
        cancel_jobs(self.sweep, runs)

    def wait(self, seconds: float) -> None:
        """See `Place`."""
        time.sleep(seconds)


class Here:
    """Processes of this machine, one a physical core. A signal to the search stops them at a checkpoint."""

    ranks = 1

    def __init__(self, sweep: Sweep):
        self.sweep, self.parallel = sweep, psutil.cpu_count(logical=False) or 1
        self.pool = Pool(sweep, self.parallel, job="local")
        self.waiting: list[str] = []

    def prepare(self) -> dict[str, Any]:
        """See `Place`."""
        return Local(self.parallel).prepare(self.sweep)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """See `Place`."""
        try:
            with stopped_together(self.pool):
                yield
        except KeyboardInterrupt:
            print("\nThe runs have saved a checkpoint. The same command goes on.", file=sys.stderr)
            raise

    def look(self) -> tuple[dict[str, RunState], set[str]]:
        """See `Place`. Runs of a search that was killed are live until they have saved a checkpoint."""
        states = self.sweep.states()
        live = {*self.waiting, *self.pool.running}
        for run, state in states.items():
            if run not in live and state.state in ("submitted", "running"):
                if is_claimed(self.sweep.folder(run)):
                    live.add(run)
                else:
                    states[run] = end = self.sweep.state_from_folder(run, state, "its search was killed")
                    self.sweep.log("ended", [run], state=end.state, job=end.job, error=end.error)
        return states, live

    def submit(self, runs: list[str]) -> None:
        """See `Place`."""
        self.sweep.lock.check_cancelled()
        self.sweep.log("submitted", runs, batch="")
        self.waiting += runs
        self.pool.fill(self.waiting)

    def cancel(self, runs: list[str]) -> None:
        """See `Place`."""
        stopped = [run for run in runs if run in self.pool.running or run in self.waiting]
        self.sweep.log("cancelled", stopped)
        self.waiting = [run for run in self.waiting if run not in runs]
        self.pool.cancel(stopped)

    def wait(self, seconds: float) -> None:
        """See `Place`. Returns as soon as a run has ended."""
        end, before = time.monotonic() + seconds, set(self.pool.running)
        while time.monotonic() < end and before <= self.pool.running.keys():
            time.sleep(0.05)
            self.pool.settle()
        self.pool.fill(self.waiting)
        if self.pool.stopping:  # whoever stops one of our runs wants the machine
            raise UserError(f"{self.sweep.path}: a run was stopped by a signal, and the others with it; the same command goes on")
