"""Options of a run, each in a file of its own around the core: what they are for, the core does not know."""

from __future__ import annotations

from typing import Any

from harness.train.sampler import Sampler


class Option:
    """Wraps a sampler: what an option does not define is the sampler's."""

    def __init__(self, inner: Sampler):
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # before __init__, as in a copy
            raise AttributeError(name)
        return getattr(self.inner, name)
