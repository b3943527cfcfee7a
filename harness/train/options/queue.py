"""Rollouts that are sampled before they are used: staleness as a controlled factor.

With staleness k the rollout of step s is sampled at step s − k, the first k of them at step 0. The engine then holds the weights
of that step and no others. What waits in between is part of a checkpoint.

With partial rollouts each of the m parts of a response is sampled at a step of its own, at s − k − m + 1 to s − k: a part by the
weights of its step, what has been sampled before as its prompt. The first rollouts get what they lack at step 0.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from harness.rollouts import Rollout


class RolloutQueue:
    """Life cycle: for each step the engine gets its weights, and then `next` gives the rollout.

    sample: the rollout of a step, of all ranks, by the weights that the engine has. Its second argument is the rollout so far,
    which is to get its next part; None before the first.
    length: tokens of a response at most. part: tokens of a part of it; None for whole responses.
    """

    def __init__(
        self,
        sample: Callable[[int, Rollout | None], Rollout],
        *,
        staleness: int,
        steps: int,
        length: int,
        part: int | None,
    ):
        self.sample, self.staleness, self.steps = sample, staleness, steps
        self.length, self.part = length, part or length
        self.parts = -(-length // self.part)
        self.waiting: list[Rollout] = []

    def next(self, step: int) -> Rollout:
        """The rollout of `step`. All that the engine's present weights are to sample has then been sampled."""
        for place, number in enumerate(range(step, min(step + self.staleness + self.parts, self.steps))):
            begun = self.waiting[place] if place < len(self.waiting) else None
            wanted = min(self.length, (self.staleness + self.parts - place) * self.part)
            self.waiting[place : place + 1] = [self._until(wanted, number, begun)]
        return self.waiting.pop(0)

    def _until(self, wanted: int, number: int, rollout: Rollout | None) -> Rollout:
        """The rollout of a step with `wanted` places at least."""
        while rollout is None or rollout.tokens.shape[1] < wanted:
            rollout = self.sample(number, rollout)
        return rollout

    def state(self) -> dict[str, Tensor]:
        """The rollouts that wait, for a checkpoint."""
        waiting = enumerate(self.waiting)
        tensors = ((f"{i}.{name}", part) for i, rollout in waiting for name, part in rollout._asdict().items())
        return {name: part.contiguous() for name, part in tensors if part is not None}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take back the tensors that `state` gave."""
        numbers = sorted({int(name.split(".")[0]) for name in state})
        fields = {i: {name: state.get(f"{i}.{name}") for name in Rollout._fields} for i in numbers}
        self.waiting = [Rollout(**{name: part for name, part in own.items() if part is not None}) for own in fields.values()]
