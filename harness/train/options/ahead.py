"""rollout.staleness: responses are sampled some steps before they are trained on."""

from __future__ import annotations

from torch import Tensor

from harness.rollouts import Rollout
from harness.train.data.responses import Responses
from harness.train.options import Option
from harness.train.options.queue import RolloutQueue
from harness.train.sampler import Sampler


class SampledAhead(Option):
    """Takes the responses of a step from a `RolloutQueue`. part: tokens sampled at a time; None for whole responses."""

    def __init__(self, inner: Sampler, part: int | None = None):
        super().__init__(inner)
        config = inner.config
        self.queue = RolloutQueue(
            self._sampled, staleness=config.rollout.staleness, steps=config.steps, length=inner.task.answer_length, part=part
        )

    def _sampled(self, step: int, begun: Rollout | None) -> Rollout:
        return self.inner.gather(self.inner.sample_share(step))

    def sample(self, step: int) -> Responses:
        """The responses that are trained on in `step`, sampled by the weights of `rollout.staleness` steps before."""
        prompts = self.inner.draw_prompts(step)
        return self.inner.rewarded(prompts, self.queue.next(step))

    def state(self) -> dict[str, Tensor]:
        """Tensors of the responses that wait for their step, for a checkpoint."""
        return self.queue.state()

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore the waiting responses from the tensors that `state` returned."""
        self.queue.restore(state)
