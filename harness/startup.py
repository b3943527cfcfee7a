"""A quicker start: libraries are imported, and configs composed, without work that no run needs."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Within the body no garbage is collected, and what exists after it is never looked at again.

    torch and transformers make a million objects that live as long as the process. Collections that walk them are a sixth of
    the time of their import. Left alone they also stay in the pages that forked processes share: see `gc.freeze`.
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
    """Within the body the environment variable has this value."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
