"""`run`, `tracking`, `checkpoint` and `dump`: the operation of a run. These sections change no result."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.config.base import Count, Name, Strict, Text

OPERATION = ("run", "tracking", "checkpoint", "dump")
"""Sections that do not enter the digest of a config, because they change no result."""


class CheckpointConfig(Strict):
    """Checkpoints, from which a run resumes. SIGTERM and SIGUSR2 also save one."""

    every: Count
    """Steps between two checkpoints."""
    keep: Annotated[int, Field(ge=2, le=10**9)]
    """Number of checkpoints that are kept, the newest ones."""


class DumpConfig(Strict):
    """Training batches as parquet files under dumps/ of the run folder, for `faultline replay`; see docs/dumps.md."""

    every: Count | None = None
    """Steps between two dumps of the whole batch. null: no dumps."""


class TrackingConfig(Strict):
    """Mirror of the run folder in W&B."""

    mode: Literal["auto", "online", "offline", "disabled"]
    """Mode of W&B. auto: online when WANDB_API_KEY is set, else offline."""
    project: Text
    """Name of the project in W&B."""


class RunConfig(Strict):
    """Place of the run folder: root/sweep/digest."""

    root: Text
    """Folder of all sweeps."""
    sweep: Name
    """Name of the sweep that the run belongs to."""
