"""Interface through which grids (`sweeps.launch`) and searches (`sweeps.search`) run the runs of a sweep."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from sweeps.ledger import Sweep
from sweeps.states import RunState


class Executor(Protocol):
    """Executor of the runs of one sweep: `local.Local` or `slurm.Slurm`.

    ranks: number of processes of a run. detach: whether the launch ends once all runs are submitted. stopped: whether a signal
    that the launcher did not send stopped a run. Then all runs are stopped, and none starts any more.
    """

    sweep: Sweep
    ranks: int
    detach: bool

    @property
    def stopped(self) -> bool: ...

    def prepare(self) -> dict[str, Any]:
        """Prepare the launch. Return settings with which `launch.relaunch` can repeat it. Raise UserError if it is impossible."""

    def attached(self) -> AbstractContextManager[None]:
        """Context manager around submitting and waiting. It decides what Ctrl-C and SIGTERM do to the runs."""

    def describe(self, count: int) -> str:
        """Describe, for the user, how `count` runs will be executed."""

    def look(self) -> tuple[dict[str, RunState], set[str]]:
        """Return (state of every run, runs that wait or are under way). Raise squeue.NoAnswer if Slurm does not answer."""

    def submit(self, runs: list[str]) -> None:
        """Submit `runs` for execution. Raise UserError if the user has cancelled the sweep meanwhile."""

    def cancel(self, runs: list[str]) -> None:
        """Stop each run in `runs` that waits or is under way."""

    def wait(self, seconds: float) -> bool:
        """Wait for at most `seconds` while the runs continue. Returns True as soon as a run is known to have ended."""
