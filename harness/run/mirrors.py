"""Mirrors of a run folder in other trackers: W&B, and TensorBoard's event files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.config import Config
from harness.run.tensorboard import EventFiles
from harness.run.wandb import Tracker


class Mirrors:
    """The mirrors chosen in the config section `tracking`. A failure of a mirror never stops a run.

    first: first step of this process.
    """

    def __init__(self, config: Config, folder: Path, first: int):
        self.wandb, self.event_files = Tracker(config, folder), EventFiles(config, folder, first)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Mirror the metrics of a step."""
        self.wandb.log(step, metrics)
        self.event_files.log(step, metrics)

    def event(self, step: int, role: str, detector: str, event: dict[str, Any]) -> None:
        """Mirror an event that a detector reported at `step`."""
        self.wandb.event(step, role, detector, event)
        self.event_files.event(step, role, detector, event)

    def finish(self, exit_code: int, **summary: Any) -> None:
        """Close the mirrors, with the outcome of the run."""
        self.wandb.finish(exit_code, **summary)
        self.event_files.finish()
