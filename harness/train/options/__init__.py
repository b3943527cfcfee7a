"""Options of a training step, each in a file of its own. They extend sampler, scorer and learner, which do not import them."""

from __future__ import annotations

from typing import Any

from harness.train.sampler import Sampler


class Option:
    """Base class of options. An option wraps a sampler, and has those attributes of the sampler that it does not define."""

    def __init__(self, inner: Sampler):
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # before __init__, as in a copy
            raise AttributeError(name)
        return getattr(self.inner, name)
