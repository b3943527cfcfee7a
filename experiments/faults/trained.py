"""What the bug `raw_logprobs` costs a run: an engine that has it, as `rollout.engine.name`."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from harness.rollouts import Rollout
from harness.rollouts.local import LocalEngine


class RawLogprobs(LocalEngine):
    """The embedded engine with vLLM's default: it samples at rollout.temperature, and logs log-probabilities at temperature 1."""

    def generate(self, prompts: Tensor, uniforms: Tensor) -> Rollout:
        sampled, sampling = super().generate(prompts, uniforms), self.sampling
        self.sampling = dataclasses.replace(sampling, temperature=1.0)
        try:
            return sampled._replace(logp=self.score(prompts, sampled.tokens))
        finally:
            self.sampling = sampling
