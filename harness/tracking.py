"""W&B as a mirror of the run folder. The only file that imports wandb to write.

Offline unless a key is present. The id is the hash of the config, the step is always explicit, so that the fragments which
resumed runs leave behind can be merged.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

from harness.config import Config
from harness.records import arm_name


class Tracker(Protocol):
    """What the trainer tells a tracker."""

    def log(self, step: int, metrics: dict[str, float]) -> None: ...
    def summary(self, values: dict[str, Any]) -> None: ...
    def finish(self, exit_code: int) -> None: ...


class NoTracker:
    """tracking.mode=disabled."""

    def log(self, step: int, metrics: dict[str, float]) -> None:
        pass

    def summary(self, values: dict[str, Any]) -> None:
        pass

    def finish(self, exit_code: int) -> None:
        pass


class WandbTracker:
    """One W&B run in `<folder>/wandb`."""

    def __init__(self, config: Config, folder: Path):
        import wandb

        for variable in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_CONFIG_DIR"):
            os.environ.setdefault(variable, str(folder / "wandb"))
        (folder / "wandb").mkdir(parents=True, exist_ok=True)
        settings = {"console": "off", "silent": True, "x_disable_stats": True}
        # W&B loses what it has not flushed when the process is killed; its default is 15 s. A private setting, so it may go.
        if "x_transaction_log_flush_interval" in wandb.Settings.model_fields:
            settings["x_transaction_log_flush_interval"] = 1
        mode = config.tracking.mode
        if mode == "auto":
            mode = "online" if os.environ.get("WANDB_API_KEY") else "offline"
        values = config.model_dump(mode="json")
        arguments = dict(
            project=config.tracking.project,
            id=config.digest,
            name=arm_name(values),
            group=config.run.sweep,
            job_type="train",
            config={**values, "arm": arm_name(values, seed=False)},
            dir=str(folder),
            resume="allow",
        )
        try:
            self._run = wandb.init(mode=mode, settings=wandb.Settings(**settings), **arguments)
        except wandb.errors.CommError as error:
            print(f"W&B cannot be reached ({error}); the run is recorded offline, `wandb sync` sends it later", flush=True)
            self._run = wandb.init(mode="offline", settings=wandb.Settings(**settings), **arguments)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self._run.log(metrics, step=step)

    def summary(self, values: dict[str, Any]) -> None:
        self._run.summary.update(values)

    def finish(self, exit_code: int) -> None:
        self._run.finish(exit_code=exit_code)


def tracker(config: Config, folder: Path) -> Tracker:
    """The tracker that the config asks for."""
    return NoTracker() if config.tracking.mode == "disabled" else WandbTracker(config, folder)

