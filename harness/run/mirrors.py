"""The mirrors of a run folder: W&B, and TensorBoard's event files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.config import Config
from harness.run.tensorboard import EventFiles
from harness.run.wandb import Tracker


class Mirrors:
    """The mirrors that `tracking` asks for. None of them ever stops a run. first: the step with which this process begins."""

    def __init__(self, config: Config, folder: Path, first: int):
        self.wandb, self.event_files = Tracker(config, folder), EventFiles(config, folder, first)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Mirror the row of a step."""
        self.wandb.log(step, metrics)
        self.event_files.log(step, metrics)

    def event(self, step: int, role: str, detector: str, event: dict[str, Any]) -> None:
        """Mirror a detector's event."""
        self.wandb.event(step, role, detector, event)
        self.event_files.event(step, role, detector, event)

    def finish(self, exit_code: int, **summary: Any) -> None:
        """Close them with the run's outcome."""
        self.wandb.finish(exit_code, **summary)
        self.event_files.finish()
