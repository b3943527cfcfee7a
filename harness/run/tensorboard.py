"""TensorBoard event files as a mirror of the run folder. The only file that writes with tensorboard.

The files lie in `<run>/tensorboard`. Every number of every row is a scalar under its own name, and a detector's event is a
text. The run folder is the record, so a failure of the mirror never stops a run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.config import Config
from harness.extras import absence
from harness.files import refuse_links


class EventFiles:
    """Event files of one run in `<folder>/tensorboard`. Without tracking.tensorboard nothing is written.

    first: first step of this process. TensorBoard drops the entries that an earlier process wrote from that step on.
    """

    def __init__(self, config: Config, folder: Path, first: int):
        self._writer: Any = None
        if config.tracking.tensorboard:
            self._start(folder / "tensorboard", first)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Mirror the metrics of a step as scalars."""

        def add() -> None:
            for name, value in metrics.items():
                self._writer.add_scalar(name, value, step)

        self._guarded(add)

    def event(self, step: int, role: str, detector: str, event: dict[str, Any]) -> None:
        """Mirror a detector's event as a text at the step that completed it."""
        text = f"{role} by {detector} from step {event['onset']} on, seen at step {step}"
        self._guarded(lambda: self._writer.add_text(f"{role}/{detector}", text, step))

    def finish(self) -> None:
        """Write buffered entries and close the event files."""
        self._guarded(lambda: self._writer.close())

    def _start(self, folder: Path, first: int) -> None:
        try:
            refuse_links(folder.parent, f"{folder.name}/events")
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder), purge_step=first or None, flush_secs=5)
        except Exception as error:
            self._give_up(error)

    def _guarded(self, call: Callable[[], None]) -> None:
        """Call a function of the mirror if it is open. After an error the run continues without the mirror."""
        if self._writer is not None:
            try:
                call()
            except Exception as error:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._writer = None
        cause = (isinstance(error, ModuleNotFoundError) and absence(error)) or f"{type(error).__name__}: {error}"
        print(f"TensorBoard: {cause}; nothing more is mirrored there, the run's folder is the record", flush=True)
