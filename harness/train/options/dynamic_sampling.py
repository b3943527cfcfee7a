"""rollout.filter: DAPO's dynamic sampling (arXiv 2503.14476 section 3.2), which replaces groups whose rewards are all equal."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from harness.rollouts import Rollout
from harness.train.data.responses import Responses
from harness.train.options import Option
from harness.train.sampler import Sampler


class DynamicSampling(Option):
    """Option that samples more rounds of prompts until a step's groups all have unequal rewards, or `max_rounds` is reached.

    Round r of step s takes the prompts `draw_prompts(s·max_rounds + r)`. Numbers that no round needs are skipped.
    """

    def __init__(self, inner: Sampler, max_rounds: int):
        super().__init__(inner)
        self.max_rounds = max_rounds
        self.metrics: dict[str, Tensor] = {}
        """Metrics of how the groups (responses to one prompt) of the last step were chosen."""

    def sample(self, step: int) -> Responses:
        """Return a step's groups of responses: the first ones with unequal rewards, then others if these are too few."""
        responses = self.inner.sample(step * self.max_rounds)
        wanted, rounds = len(responses.rewards), 1
        while rounds < self.max_rounds and int(responses.informative.sum()) < wanted:
            responses = joined(responses, self.inner.sample(step * self.max_rounds + rounds))
            rounds += 1
        informative = responses.informative
        self.metrics = {
            "rollout/rounds": torch.tensor(float(rounds)),
            "rollout/filtered_groups": 1 - informative.double().mean(),
            "rollout/filler_groups": 1 - (informative.double().sum() / wanted).clamp(max=1),
            "reward/sampled": responses.rewards.mean(),
        }
        return groups(responses, (~informative).int().argsort(stable=True)[:wanted])

    def describe(self, responses: Responses) -> dict[str, Tensor]:
        """Metrics of responses, including the share of sampled groups (responses to one prompt) with all rewards equal."""
        return self.inner.describe(responses) | self.metrics


def groups(responses: Responses, index: Tensor) -> Responses:
    """Select the prompts whose numbers are in `index` [n], with all responses to each."""
    size = responses.rewards.shape[1]
    rows = (index[:, None] * size + torch.arange(size, device=index.device)).flatten()
    rollout = _each(lambda part: part[rows], responses.rollout)
    of_prompts = {name: part[index] for name, part in responses.of_prompts.items()}
    return Responses(responses.prompts[rows], rollout, responses.rewards[index], of_prompts)


def joined(one: Responses, other: Responses) -> Responses:
    """Concatenate two sets of sampled responses with their rewards: the prompts of `one`, then those of `other`."""
    rollout = _each(lambda *parts: torch.cat(parts), one.rollout, other.rollout)
    of_prompts = {name: torch.cat([part, other.of_prompts[name]]) for name, part in one.of_prompts.items()}
    return Responses(torch.cat([one.prompts, other.prompts]), rollout, torch.cat([one.rewards, other.rewards]), of_prompts)


def _each(function: Callable[..., Tensor], *rollouts: Rollout) -> Rollout:
    """Apply a function to each field of one or more rollouts. A field that any of the rollouts lacks becomes None."""
    return Rollout._make(None if any(p is None for p in parts) else function(*parts) for parts in zip(*rollouts, strict=True))
