"""Progress lines of a run, and signals that ask it to stop."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class RunProgress:
    """Progress of a run, printed every few seconds: the step, the latest metrics, and the time left.

    largest: the largest gradient norm of the steps shown, None before the first one.
    """

    EVERY = 5.0
    """Seconds between progress lines."""

    def __init__(self, first: int, steps: int):
        self.first, self.steps, self.began, self.last, self.evaluated = first, steps, time.monotonic(), -math.inf, ""
        self.largest: float | None = None

    def show(self, done: int, metrics: dict[str, float]) -> None:
        """Print a line on the step just recorded. None is printed if steps are left and the previous line is younger than EVERY
        seconds. done: number of steps done."""
        if "eval/reward" in metrics:
            self.evaluated = f"  evaluation {metrics['eval/reward']:.3f}"
        # A rollout without a finite log-probability has no K3; a skipped step, or one of the critic alone, no gradient norm.
        k3, gradient = metrics.get("rollout_corr/k3_kl"), metrics.get("actor/grad_norm")
        if gradient is not None:
            self.largest = max(gradient, self.largest or 0.0)
        now = time.monotonic()
        if now - self.last < self.EVERY and done < self.steps:
            return
        self.last = now
        left = (now - self.began) / (done - self.first) * (self.steps - done)
        print(
            f"step {done}/{self.steps}  reward {metrics['reward/rollout']:.3f}{self.evaluated}  "
            f"K3 {'–' if k3 is None else f'{k3:.1e}'}  gradient {'–' if gradient is None else f'{gradient:.2g}'}  "
            f"about {left:.0f} s left",
            flush=True,
        )

    def end(self, metrics: dict[str, float]) -> None:
        """Print the evaluation after the last step, which no line on a step shows, and whether no step trained anything."""
        print(f"evaluation at the end {metrics['eval/reward']:.3f}", flush=True)
        if self.largest == 0:
            print(
                "no step had a gradient, so nothing was trained: all advantages or all weights were 0. If each prompt's "
                "responses have equal rewards, try rollout.temperature=1 rollout.top_p=1 rollout.top_k=0",
                flush=True,
            )


class Preempted(SystemExit):
    """Raised when a signal stops a run, which resumes at its next start. The exit code is 128 + the signal's number."""

    def __init__(self, number: int):
        super().__init__(128 + number)
        self.number = number


class StopRequest:
    """Record of a signal that asks the run to stop. number: the signal's number, 0 before any signal.

    at_once: whether a signal ends the run immediately, because nothing can be saved yet. Otherwise the run checks `number`.
    """

    def __init__(self, *, at_once: bool):
        self.number, self.at_once = 0, at_once

    def __call__(self, number: int, frame: FrameType | None) -> None:
        first, self.number = not self.number, number
        if self.at_once and first:
            raise Preempted(number)


@contextmanager
def stop_signals(*, at_once: bool) -> Iterator[StopRequest]:
    """Context manager that catches Ctrl-C, SIGTERM and SIGUSR2 as a StopRequest. at_once: they end the run immediately."""
    request = StopRequest(at_once=at_once)
    caught = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
    before = [signal.signal(number, request) for number in caught]
    try:
        yield request
    finally:
        for number, handler in zip(caught, before, strict=True):
            signal.signal(number, handler)
