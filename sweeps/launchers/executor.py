"""Where the runs of a sweep run, as a grid (`sweeps.launch`) and a search (`sweeps.search`) use it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from sweeps.ledger import Sweep
from sweeps.states import RunState


class Executor(Protocol):
    """`local.Local` or `slurm.Slurm`, for one sweep.

    ranks: processes of a run. detach: return once all is submitted. stopped: a run was stopped by a signal from elsewhere, so
    all were stopped, and no other starts.
    """

    sweep: Sweep
    ranks: int
    detach: bool

    @property
    def stopped(self) -> bool: ...

    def prepare(self) -> dict[str, Any]:
        """Return the settings from which `launch.relaunch` makes another. Raise UserError if it cannot run this sweep."""

    def attached(self) -> AbstractContextManager[None]:
        """Around all that submits and waits: what Ctrl-C and SIGTERM do to the runs."""

    def describe(self, count: int) -> str:
        """How it will run `count` runs."""

    def look(self) -> tuple[dict[str, RunState], set[str]]:
        """(the state of every run, the runs that wait or are under way). Raise squeue.NoAnswer if that cannot be known."""

    def submit(self, runs: list[str]) -> None:
        """Have them run. Raise UserError if the user has cancelled the sweep meanwhile."""

    def cancel(self, runs: list[str]) -> None:
        """Stop those of them that wait or are under way."""

    def wait(self, seconds: float) -> bool:
        """Let the runs go on for at most so long. True as soon as one is known to have ended."""
