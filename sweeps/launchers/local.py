"""The local launcher: many runs at once on this machine."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sweeps.launchers.pool import Pool
from sweeps.ledger import Sweep, is_claimed
from sweeps.states import RunState


class Local:
    """Executor of the local launcher: `parallel` runs at a time."""

    def __init__(self, parallel: int):
        self.parallel = parallel

    def prepare(self, sweep: Sweep) -> dict[str, Any]:
        """See `Executor`."""
        return {"launcher": "local", "parallel": self.parallel}

    def active(self, sweep: Sweep, states: dict[str, RunState]) -> dict[str, str]:
        """Runs whose folder another process holds: this launcher leaves them alone."""
        suspects = [run for run, state in states.items() if state.state in ("running", "submitted")]
        return {run: "another process" for run in suspects if is_claimed(sweep.folder(run))}

    def describe(self, count: int) -> str:
        """See `Executor`."""
        return f"{count} to run, {min(self.parallel, count)} at a time"

    def run(self, sweep: Sweep, runs: list[str], tick: Callable[[], None]) -> bool:
        """Run `runs`, wait for those of other processes, then run what these leave unfinished. Always True.

        A signal to this process stops its runs at a checkpoint, and raises.
        """
        others = self.active(sweep, sweep.states())
        sweep.log("submitted", runs, batch="")
        pool = Pool(sweep, self.parallel, job="local")
        with stopped_together(pool):
            pool.run(runs, tick)
            while not pool.stopping and any(is_claimed(sweep.folder(run)) for run in others):
                tick()
                time.sleep(0.1)
            states = sweep.states()
            left = [run for run in others if sweep.state_from_folder(run, states[run], "").state in ("interrupted", "preempted")]
            sweep.log("submitted", left, batch="")
            pool.run(left, tick)
        return True


@contextmanager
def stopped_together(pool: Pool) -> Iterator[None]:
    """Ctrl-C or SIGTERM to the launcher asks each run to save a checkpoint and stop, and waits for that."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    except BaseException:
        pool.stop()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
