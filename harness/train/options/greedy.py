"""advantage=remax: ReMax (arXiv 2310.10505) takes the reward of a greedy response to each prompt as the baseline."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.models import device
from harness.rollouts import RolloutEngine
from harness.rollouts.turns import respond_greedily
from harness.tasks import PAD
from harness.train.data.responses import Responses
from harness.train.options import Option

GREEDY, GREEDY_LENGTHS = "greedy", "greedy_lengths"
"""Keys of `Responses.of_prompts`: rewards [N] of the greedy responses, and their lengths [N] in tokens."""


class GreedyBaseline(Option):
    """Option that generates a greedy response to each prompt of a step, before the step's responses are sampled."""

    def sample(self, number: int) -> Responses:
        """Sample responses to `draw_prompts(number)`, with the rewards and lengths of greedy responses as `of_prompts`."""
        greedy = self._greedy(self.inner.engine, self.inner.draw_prompts(number))
        return self.inner.sample(number)._replace(of_prompts=greedy)

    def sample_by(self, engine: RolloutEngine, prompts: Tensor, uniforms: Tensor) -> Responses:
        """Sample responses of `engine` to prompts [B, P], with rewards and lengths of its greedy responses as `of_prompts`."""
        responses = self.inner.sample_by(engine, prompts, uniforms)
        return responses._replace(of_prompts=self._greedy(engine, prompts))

    def describe(self, responses: Responses) -> dict[str, Tensor]:
        """Metrics of responses, including the mean reward of the greedy responses."""
        return self.inner.describe(responses) | {"reward/greedy": responses.of_prompts[GREEDY].mean()}

    def _greedy(self, engine: RolloutEngine, prompts: Tensor) -> dict[str, Tensor]:
        """Rewards and lengths, [N] each, of greedy responses to N prompts, each of which fills rollout.group_size rows [B, P]."""
        inner = self.inner
        with inner.clock.phase("generate"):
            distinct = prompts[:: inner.config.rollout.group_size]
            tokens = respond_greedily(engine, inner.task, distinct)
        lengths = (tokens != PAD).sum(1)
        inner.clock.sampled_tokens += int(lengths.sum())
        rewards = torch.from_numpy(inner.task.reward(distinct.cpu().numpy(), tokens.cpu().numpy())).float().to(device())
        # Every rank asked for all values; those of rank 0 are kept.
        return {name: inner.ranks.gather(part)[: len(distinct)] for name, part in ((GREEDY, rewards), (GREEDY_LENGTHS, lengths))}
