"""rollout.staleness and rollout.overlap: the responses of a step are sampled steps before, or while the actor trains."""

from __future__ import annotations

from torch import Tensor

from harness.rollouts import Rollout
from harness.train.data.queue import RolloutQueue
from harness.train.data.responses import Responses
from harness.train.options import Option
from harness.train.sampler import Sampler


class SampledAhead(Option):
    """Takes the responses of a step from a `RolloutQueue`. part: tokens that are sampled at a time; None for whole responses."""

    def __init__(self, inner: Sampler, part: int | None = None):
        super().__init__(inner)
        config = inner.config
        self.overlap = config.rollout.overlap
        self.queue = RolloutQueue(
            self._share, inner.gather, staleness=config.rollout.staleness, overlap=self.overlap, steps=config.steps,
            length=inner.task.answer_length, part=part,
        )  # fmt: skip

    def _share(self, step: int, begun: Rollout | None) -> Rollout:
        return self.inner.sample_share(step)

    def sample(self, step: int) -> Responses:
        """The responses that are trained on in `step`, sampled by the weights of `rollout.staleness` steps before."""
        prompts = self.inner.draw_prompts(step)
        return self.inner.rewarded(prompts, self.queue.next(step))

    def rest(self) -> None:
        """Let the engine rest, unless it goes on sampling."""
        if not self.overlap:
            self.inner.rest()

    def drain(self) -> None:
        """Wait for what is sampled while the actor trains."""
        self.queue.drain()

    def state(self) -> dict[str, Tensor]:
        """The responses that wait for their step, for a checkpoint."""
        return self.queue.state()

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take back the tensors that `state` gave."""
        self.queue.restore(state)
