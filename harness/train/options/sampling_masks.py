"""rollout.replay_sampling_mask: policies are renormalised over the tokens that top_p and top_k left when the engine sampled."""

from __future__ import annotations

from torch import Tensor

from harness.rollouts import Rollout
from harness.rollouts.recorded import sizes
from harness.train.data.responses import Responses
from harness.train.options import Option


class SamplingMasks(Option):
    """Option that reports how many tokens top_p and top_k left at each position, as recorded by the rollout engine."""

    def describe(self, responses: Responses) -> dict[str, Tensor]:
        """Metrics of responses, including the mean number of tokens that top_p and top_k left at a token position."""
        rollout = responses.rollout
        assert rollout.support is not None  # harness.validate has checked that the engine records it
        support = sizes(rollout.support)[rollout.written].double().mean()
        return self.inner.describe(responses) | {"rollout/support_tokens": support}


def sampling_masks(rollout: Rollout) -> Tensor | None:
    """Masks of the tokens that top_p and top_k left to sample from, [B, T, ⌈V/8⌉] bits; None if the engine recorded none."""
    return rollout.support
