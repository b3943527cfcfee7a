"""Interface through which grids (`sweeps.launch`) and searches (`sweeps.search`) run the runs of a sweep."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from sweeps.ledger import Sweep
from sweeps.states import RunState


class Executor(Protocol):
    """Executor of the runs of one sweep: `local.Local` or `slurm.Slurm`.

    ranks: processes of a run. detach: return once all is submitted. stopped: an outside signal stopped a run, so all runs
    were stopped, and none starts any more.
    """

    sweep: Sweep
    ranks: int
    detach: bool

    @property
    def stopped(self) -> bool: ...

    def prepare(self) -> dict[str, Any]:
        """Prepare the launch and return settings with which `launch.relaunch` can repeat it. Raise UserError if it cannot run."""

    def attached(self) -> AbstractContextManager[None]:
        """Context manager around submitting and waiting. It defines the effect of Ctrl-C and SIGTERM on the runs."""

    def describe(self, count: int) -> str:
        """Description of how `count` runs will be executed, for the user."""

    def look(self) -> tuple[dict[str, RunState], set[str]]:
        """The state of every run, and the runs that wait or are under way. Raise squeue.NoAnswer if Slurm does not answer."""

    def submit(self, runs: list[str]) -> None:
        """Submit these runs for execution. Raise UserError if the user has cancelled the sweep meanwhile."""

    def cancel(self, runs: list[str]) -> None:
        """Stop those of these runs that wait or are under way."""

    def wait(self, seconds: float) -> bool:
        """Wait for at most this many seconds while the runs continue. Returns True as soon as one is known to have ended."""
