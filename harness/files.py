"""Writing files of runs: what a full disk becomes, and what outlives a power failure. Torch-free."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from harness.errors import Unavailable


class EventLog(Protocol):
    """A run's folder as the trainer sees it: `harness.run.folder.RunFolder` is one."""

    path: Path

    def log_event(self, kind: str, step: int, **more: Any) -> None:
        """Append one event."""

    def log_questions(self, step: int, rewards: dict[str, list[float]]) -> None:
        """Append one evaluation, a mean reward per prompt."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of a write under `path`, such as a full disk, into an Unavailable with its remedy."""
    try:
        yield
    except OSError as error:
        remedy = "free some space or set run.root to another disk, then start again: the run resumes from its last checkpoint"
        raise Unavailable(f"{path}: cannot write ({error.strerror}); {remedy}") from error


def to_disk(path: Path) -> None:
    """Wait until what was written to a file, or the names in a folder, would survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
