"""Where the time of a step goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from harness.models import synchronize


class Clock:
    """Life cycle: `restart` at the start of a step, any number of phases within it, then `metrics`."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget all phases."""
        self.began = time.perf_counter()
        self.seconds: dict[str, float] = {}
        self.sampled_tokens = 0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the seconds that the body takes to the phase, on a GPU with all that the body asked of it."""
        synchronize()
        began = time.perf_counter()
        yield
        synchronize()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

    def metrics(self) -> dict[str, float]:
        """time/<phase> in seconds, time/step since `restart`, and sampled tokens per second of sampling if any were sampled."""
        times = {f"time/{name}": seconds for name, seconds in self.seconds.items()}
        times["time/step"] = time.perf_counter() - self.began
        if "generate" in self.seconds:  # not at the end of a stale run, when all is sampled
            times["throughput/rollout_tokens"] = self.sampled_tokens / self.seconds["generate"]
        return times
