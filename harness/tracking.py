"""W&B as a mirror of the run folder. The only file that imports wandb to write.

Offline unless a key is present. The id is the hash of the config, the step is always explicit, so that the fragments which
resumed runs leave behind can be merged. The folder is the record: whatever goes wrong with the mirror never stops a run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.config import Config
from harness.records import arm_name


class Tracker:
    """One W&B run in `<folder>/wandb`; nothing at all with tracking.mode=disabled."""

    def __init__(self, config: Config, folder: Path):
        self._run: Any = None
        mode = config.tracking.mode
        if mode == "auto":
            mode = "online" if os.environ.get("WANDB_API_KEY") else "offline"
        if mode != "disabled":
            self._tell(lambda: self._start(config, folder, mode))
        if self._run is None and mode == "online":
            self._tell(lambda: self._start_offline_after_all(config, folder))

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Mirror the row of a step."""
        if self._run is not None:
            self._tell(lambda: self._run.log(metrics, step=step))

    def finish(self, exit_code: int, **summary: Any) -> None:
        """Close the mirror with the run's outcome."""
        if self._run is not None:
            self._tell(lambda: self._run.summary.update(summary))
        if self._run is not None:
            self._tell(lambda: self._run.finish(exit_code=exit_code))

    def _tell(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self._run = None
            print(f"W&B: {type(error).__name__}: {error}; the run goes on, its folder is the record", flush=True)

    def _start_offline_after_all(self, config: Config, folder: Path) -> None:
        import wandb

        wandb.teardown()  # its service still holds the id of the attempt that failed
        self._start(config, folder, "offline")

    def _start(self, config: Config, folder: Path, mode: str) -> None:
        import wandb

        for variable in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_CONFIG_DIR"):  # else the home directory fills
            os.environ.setdefault(variable, str(Path(config.run.root).resolve() / ".wandb"))
        (folder / "wandb").mkdir(parents=True, exist_ok=True)
        settings = {"console": "off", "silent": True, "x_disable_stats": True}
        # W&B loses what it has not flushed when the process is killed; its default is 15 s. A private setting, so it may go.
        if "x_transaction_log_flush_interval" in wandb.Settings.model_fields:
            settings["x_transaction_log_flush_interval"] = 1
        values = config.model_dump(mode="json")
        self._run = wandb.init(
            mode=mode,
            settings=wandb.Settings(**settings),
            project=config.tracking.project,
            id=config.digest,
            name=arm_name(values),
            group=config.run.sweep,
            job_type="train",
            config={**values, "arm": arm_name(values, seed=False)},
            dir=str(folder),
            resume="allow",
        )
