"""What a launcher must do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sweeps.ledger import Sweep
from sweeps.states import RunState


class Executor(Protocol):
    """`local.Local` or `slurm.Slurm`. `launch.launch` calls the methods in the order in which they stand here."""

    def prepare(self, sweep: Sweep) -> dict[str, Any]:
        """Return the settings from which `launch.relaunch` makes another. Raise UserError if it cannot run this sweep."""

    def active(self, sweep: Sweep, states: dict[str, RunState]) -> dict[str, str]:
        """Runs that a process or a job has already, and its name."""

    def describe(self, count: int) -> str:
        """How it will run `count` runs."""

    def run(self, sweep: Sweep, runs: list[str], tick: Callable[[], None]) -> bool:
        """Start `runs`, then wait for them and for the active ones, calling `tick` meanwhile. False if it did not wait."""
