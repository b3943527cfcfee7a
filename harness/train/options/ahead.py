"""rollout.staleness: responses are sampled some steps before they are trained on.

With staleness k, the responses of step s are sampled at step s − k by the weights of that step, or at step 0 if s < k. A
checkpoint contains the waiting rollouts.

With partial rollouts a response has m parts, sampled at steps s − k − m + 1 to s − k. Each part is sampled by the weights of
its step, after the parts before it. The first responses get their missing parts at step 0.
"""

from __future__ import annotations

from torch import Tensor

from harness.rollouts import Rollout
from harness.train.data.responses import Responses
from harness.train.options import Option
from harness.train.sampler import Sampler


class SampledAhead(Option):
    """Option that samples rollouts ahead and queues them until their step. part: tokens of a response per step; None: all."""

    def __init__(self, inner: Sampler, part: int | None = None):
        super().__init__(inner)
        self.length = inner.task.answer_length
        self.part = part or self.length
        self.ahead = inner.config.rollout.staleness + -(-self.length // self.part)
        self.waiting: list[Rollout] = []

    def sample(self, step: int) -> Responses:
        """Sample, by the engine's present weights, all rollouts or parts that are due. Returns the responses of `step`."""
        for place, number in enumerate(range(step, min(step + self.ahead, self.inner.config.steps))):
            rollout = self.waiting[place] if place < len(self.waiting) else None
            while rollout is None or rollout.tokens.shape[1] < min(self.length, (self.ahead - place) * self.part):
                rollout = self._sampled(number, rollout)
            self.waiting[place : place + 1] = [rollout]
        return self.inner.rewarded(self.inner.draw_prompts(step), self.waiting.pop(0))

    def _sampled(self, step: int, begun: Rollout | None) -> Rollout:
        """Return the rollout of `step` on all ranks with one more part. begun: its parts so far; None if there are none."""
        return self.inner.gather(self.inner.sample_share(step))

    def state(self) -> dict[str, Tensor]:
        """Tensors, by name, of rollouts that were sampled but not yet trained on, for a checkpoint."""
        waiting = enumerate(self.waiting)
        tensors = ((f"{i}.{name}", part) for i, rollout in waiting for name, part in rollout._asdict().items())
        return {name: part.contiguous() for name, part in tensors if part is not None}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore rollouts that were sampled but not yet trained on from the tensors of a checkpoint."""
        numbers = sorted({int(name.split(".")[0]) for name in state})
        fields = {i: {name: state.get(f"{i}.{name}") for name in Rollout._fields} for i in numbers}
        self.waiting = [Rollout(**{name: part for name, part in own.items() if part is not None}) for own in fields.values()]
