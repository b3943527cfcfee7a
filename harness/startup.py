"""Faster start of a process: imports and config composition without needless work."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Context manager that turns garbage collection off, and at its end exempts all existing objects from later collections.

    Importing torch and transformers makes a million lasting objects. Visiting them takes a sixth of the import time, and would
    copy the memory pages that forked processes share (`gc.freeze`).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """Context manager in whose body the environment variable `name` has this value."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
