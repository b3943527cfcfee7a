"""Rollouts sampled ahead of their use: staleness as a controlled factor.

With staleness k the rollout of step s is sampled at step s − k (the first k at step 0), by an engine that then holds the weights
of that step and no others; what waits in between is part of a checkpoint. With overlap it is sampled while the trainer trains:
the engine has a copy of the weights, so the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor

from harness.rollouts import Rollout


class Ahead:
    """`sample(step)` asks the engine for this rank's share of the rollout of `step`; `whole` makes it that of all ranks."""

    def __init__(
        self, sample: Callable[[int], Rollout], whole: Callable[[Rollout], Rollout], *, staleness: int, overlap: bool, steps: int
    ):
        self.sample, self.whole = sample, whole
        self.staleness, self.steps = staleness, steps
        self.waiting: list[Rollout] = []
        # The current GPU is a thread's own.
        device = partial(torch.cuda.set_device, torch.cuda.current_device()) if torch.cuda.is_available() else None
        self.pool = ThreadPoolExecutor(1, "rollout", initializer=device) if overlap else None
        self.under_way: Future[Rollout] | None = None

    def take(self, step: int) -> Rollout:
        """The rollout of `step`, once all that the engine's present weights are to sample is sampled or under way."""
        due = list(range(step + len(self.waiting), min(step + self.staleness + 1, self.steps)))
        behind = due.pop() if self.pool and due and due[-1] > step else None
        self.waiting += [self.whole(self.sample(number)) for number in due]
        if behind is not None:
            self.under_way = self.pool.submit(self.sample, behind)
        return self.waiting.pop(0)

    def settle(self) -> None:
        """Wait for what is under way; after this the engine may get new weights."""
        if self.under_way is not None:
            self.waiting.append(self.whole(self.under_way.result()))
            self.under_way = None

    def state(self) -> dict[str, Tensor]:
        """What waits, for a checkpoint."""
        waiting = enumerate(self.waiting)
        return {f"{i}.{name}": tensor.contiguous() for i, rollout in waiting for name, tensor in rollout._asdict().items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """The counterpart of `state`."""
        numbers = sorted({int(name.split(".")[0]) for name in state})
        self.waiting = [Rollout(*(state[f"{i}.{field}"] for field in Rollout._fields)) for i in numbers]
