"""What the bug `raw_logprobs` costs a run: an engine that has it, as `rollout.engine.name`."""

from __future__ import annotations

import copy
import dataclasses

from torch import Tensor

from harness.rollouts import Rollout
from harness.rollouts.local import LocalEngine


class RawLogprobs(LocalEngine):
    """The embedded engine with vLLM's default: it logs log-probabilities before temperature, top-p and top-k.

    Parts of responses that `resume` samples are logged right.
    """

    def generate(self, prompts: Tensor, uniforms: Tensor) -> Rollout:
        sampled, raw = super().generate(prompts, uniforms), copy.copy(self)
        raw.sampling = dataclasses.replace(self.sampling, temperature=1.0, top_p=1.0, top_k=0)
        return sampled._replace(logp=raw.score(prompts, sampled.tokens))
