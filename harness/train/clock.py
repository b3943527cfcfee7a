"""Measures how long the phases of a training step take, such as sampling and scoring."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from harness.models import synchronize


class Clock:
    """Times the phases of a training step. Life cycle: `restart` at its start, any number of `phase` blocks, then `metrics`."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Start to time a new training step: forget all measured phases."""
        self.began = time.perf_counter()
        self.seconds: dict[str, float] = {}
        self.sampled_tokens = 0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the wall-clock seconds of the body to phase `name`, including all GPU work that the body started."""
        synchronize()
        began = time.perf_counter()
        yield
        synchronize()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

    def metrics(self) -> dict[str, float]:
        """Return time/<phase> and time/step (since `restart`) in seconds, and tokens sampled per second if any were sampled."""
        times = {f"time/{name}": seconds for name, seconds in self.seconds.items()}
        times["time/step"] = time.perf_counter() - self.began
        if "generate" in self.seconds:  # absent at the end of a stale run, when everything is sampled
            times["throughput/rollout_tokens"] = self.sampled_tokens / self.seconds["generate"]
        return times
