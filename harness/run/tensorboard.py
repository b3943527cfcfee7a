"""TensorBoard's event files as a mirror of the run folder. The only file that writes with tensorboard.

They lie in `<run>/tensorboard`. Every number of every row is a scalar under its own name, and a detector's event is a text. The
folder is the record: a failure of the mirror never stops a run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.config import Config
from harness.extras import absence


class EventFiles:
    """One run in `<folder>/tensorboard`; nothing at all without tracking.tensorboard.

    first: the step with which this process begins. TensorBoard drops what an earlier process wrote from that step on.
    """

    def __init__(self, config: Config, folder: Path, first: int):
        self._writer: Any = None
        if config.tracking.tensorboard:
            self._start(folder / "tensorboard", first)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Mirror the row of a step."""

        def add() -> None:
            for name, value in metrics.items():
                self._writer.add_scalar(name, value, step)

        self._guarded(add)

    def event(self, step: int, role: str, detector: str, event: dict[str, Any]) -> None:
        """Mirror a detector's event at the step at which it was seen."""
        text = f"{role} by {detector} from step {event['onset']} on, seen at step {step}"
        self._guarded(lambda: self._writer.add_text(f"{role}/{detector}", text, step))

    def finish(self) -> None:
        """Write what is still in memory."""
        self._guarded(lambda: self._writer.close())

    def _start(self, folder: Path, first: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder), purge_step=first or None, flush_secs=5)
        except Exception as error:
            self._give_up(error)

    def _guarded(self, call: Callable[[], None]) -> None:
        """Call it if there is a mirror; after an error the run goes on without."""
        if self._writer is not None:
            try:
                call()
            except Exception as error:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._writer = None
        cause = (isinstance(error, ModuleNotFoundError) and absence(error)) or f"{type(error).__name__}: {error}"
        print(f"TensorBoard: {cause}; nothing more is mirrored there, the run's folder is the record", flush=True)
