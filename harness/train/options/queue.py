"""Queue of rollouts that are sampled some steps before they are trained on: staleness as a controlled factor.

With staleness k, the rollout of step s is sampled at step s − k by that step's weights, the first ones at step 0. Waiting
rollouts are part of a checkpoint.

With partial rollouts a response has m parts, sampled at steps s − k − m + 1 to s − k. Each part is sampled by the weights of its
step, after the parts before it. The first rollouts get their missing parts at step 0.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from harness.rollouts import Rollout


class RolloutQueue:
    """Gives each step a rollout that was sampled `staleness` steps before.

    Life cycle: at each step the engine loads its weights, then `next` is called.

    sample: function (step, rollout so far or None) → the rollout of all ranks with one more part, by the engine's weights.
    length: maximum number of tokens in a response. part: tokens of one part; None for whole responses.
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
        """Return the rollout of `step`, after sampling everything that the engine's present weights have to sample."""
        for place, number in enumerate(range(step, min(step + self.staleness + self.parts, self.steps))):
            begun = self.waiting[place] if place < len(self.waiting) else None
            wanted = min(self.length, (self.staleness + self.parts - place) * self.part)
            self.waiting[place : place + 1] = [self._until(wanted, number, begun)]
        return self.waiting.pop(0)

    def _until(self, wanted: int, number: int, rollout: Rollout | None) -> Rollout:
        """Sample parts of the rollout of step `number` until it has at least `wanted` token places."""
        while rollout is None or rollout.tokens.shape[1] < wanted:
            rollout = self.sample(number, rollout)
        return rollout

    def state(self) -> dict[str, Tensor]:
        """Tensors of the waiting rollouts, by name, for a checkpoint."""
        waiting = enumerate(self.waiting)
        tensors = ((f"{i}.{name}", part) for i, rollout in waiting for name, part in rollout._asdict().items())
        return {name: part.contiguous() for name, part in tensors if part is not None}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore the waiting rollouts from the tensors that `state` returned."""
        numbers = sorted({int(name.split(".")[0]) for name in state})
        fields = {i: {name: state.get(f"{i}.{name}") for name in Rollout._fields} for i in numbers}
        self.waiting = [Rollout(**{name: part for name, part in own.items() if part is not None}) for own in fields.values()]
