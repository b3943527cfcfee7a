"""Rollouts that are sampled before they are used: staleness as a controlled factor.

With staleness k the rollout of step s is sampled at step s − k, the first k of them at step 0. The engine then holds the weights
of that step and no others. What waits in between is part of a checkpoint. With overlap a rollout is sampled while the trainer
trains: the engine has a copy of the weights, so the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor

from harness.rollouts import Rollout


class RolloutQueue:
    """Life cycle: for each step `next`, train, then `drain`; only after that may the engine get new weights.

    sample: asks the engine for this rank's share of the rollout of a step, in another thread with overlap.
    gather: the responses of all ranks, from those of each; called in the main thread, as all collectives are.
    """

    def __init__(
        self, sample: Callable[[int], Rollout], gather: Callable[[Rollout], Rollout], *, staleness: int, overlap: bool, steps: int
    ):
        self.sample, self.gather = sample, gather
        self.staleness, self.steps = staleness, steps
        self.waiting: list[Rollout] = []
        # The current GPU is a thread's own.
        device = partial(torch.cuda.set_device, torch.cuda.current_device()) if torch.cuda.is_available() else None
        self.pool = ThreadPoolExecutor(1, "rollout", initializer=device) if overlap else None
        self.under_way: Future[Rollout] | None = None

    def next(self, step: int) -> Rollout:
        """The rollout of `step`. All that the engine's present weights are to sample has then been sampled, or is under way."""
        due = list(range(step + len(self.waiting), min(step + self.staleness + 1, self.steps)))
        behind = due.pop() if self.pool and due and due[-1] > step else None
        self.waiting += [self.gather(self.sample(number)) for number in due]
        if self.pool is not None and behind is not None:
            self.under_way = self.pool.submit(self.sample, behind)
        return self.waiting.pop(0)

    def drain(self) -> None:
        """Wait for what is under way."""
        if self.under_way is not None:
            self.waiting.append(self.gather(self.under_way.result()))
            self.under_way = None

    def state(self) -> dict[str, Tensor]:
        """What waits, for a checkpoint."""
        waiting = enumerate(self.waiting)
        tensors = ((f"{i}.{name}", part) for i, rollout in waiting for name, part in rollout._asdict().items())
        return {name: part.contiguous() for name, part in tensors if part is not None}

    def restore(self, state: dict[str, Tensor]) -> None:
        """The counterpart of `state`."""
        numbers = sorted({int(name.split(".")[0]) for name in state})
        fields = {i: {name: state.get(f"{i}.{name}") for name in Rollout._fields} for i in numbers}
        self.waiting = [Rollout(**{name: part for name, part in own.items() if part is not None}) for own in fields.values()]
