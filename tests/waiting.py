"""Waiting for another process: for what it does, and never for a time."""

import time
from collections.abc import Callable

import psutil

PATIENCE = 600
"""Seconds. Against a hang alone: nothing in a test takes so long, however busy the machine."""


def until(condition: Callable[[], object], goes_on: Callable[[], bool] = lambda: True) -> None:
    """Return once the condition holds. Fails after PATIENCE, or when that which brings it about has not gone on."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert goes_on() and time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def ended(process: psutil.Process) -> bool:
    """Whether it has ended, though nobody has asked for its exit code yet."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
