"""rollout.replay_sampling_mask: policies are renormalised over the tokens that top_p and top_k left when the engine sampled."""

from __future__ import annotations

from torch import Tensor

from harness.rollouts import Rollout
from harness.rollouts.recorded import sizes
from harness.train.data.responses import Responses
from harness.train.options import Option


class SamplingMasks(Option):
    """Measures the sampling masks. `harness.build.build_engine` has the engine record them."""

    def describe(self, responses: Responses) -> dict[str, Tensor]:
        """Metrics of responses, with the mean number of tokens that could be sampled."""
        rollout = responses.rollout
        assert rollout.support is not None  # of an engine that records it, as harness.validate has checked
        support = sizes(rollout.support)[rollout.written].double().mean()
        return self.inner.describe(responses) | {"rollout/support_tokens": support}


def sampling_masks(rollout: Rollout) -> Tensor | None:
    """The masks of a rollout, for a `Scorer`; None of an engine that did not truncate, as that of a probe."""
    return rollout.support
