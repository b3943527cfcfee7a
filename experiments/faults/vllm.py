"""Real faults in vLLM: the sampler is vLLM itself, set wrongly on purpose. The trainer is the local engine in fp32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from experiments.faults.real import Bed, formats
from harness.rollouts import Rollout, Sampling
from harness.rollouts.vllm import VllmEngine

SIZES = {
    "temperature": (0.8,), "raw_logprobs": (0.8,), "top_p": (0.95,), "top_k": (20,), "bos": (1,), "template": (1,), "layer": (2,),
    "prefix": (0.4,), "eos": (1,), "prompt_in_mask": (8,), "swapped": (0.2,), "rope": (50,), "penalty": (1.0,), "bias": (1.0,),
    "window": (0.5,), "replica": (0.25,), "adapter": (0.2,), "min_p": (0.05,),
}  # fmt: skip
"""Size of each fault in dumps of SmolLM2 by vLLM. penalty is vLLM's presence_penalty, and bias its logit_bias. `draft` is
absent because vLLM cannot be set to accept every draft token, and `head` because vLLM loads its head with the other weights."""
BLOCK = 32
"""Number of tokens in a block of vLLM's prefix cache: the least that vLLM takes on a CPU. Shorter prompts are not cached."""


class FaultyVllm(VllmEngine):
    """vLLM engine with further settings in every request. parameters: values of vLLM's SamplingParams, by name."""

    logprobs_mode = "processed_logprobs"
    parameters: Mapping[str, Any] = {}

    def _options(self, kv_cache_gib: float) -> dict[str, Any]:
        return super()._options(kv_cache_gib) | {"logprobs_mode": self.logprobs_mode, "block_size": BLOCK}

    def _answers(self, rows: Tensor, sampling: Any) -> list[Any]:
        for one in sampling if isinstance(sampling, list) else [sampling]:
            for name, value in self.parameters.items():
                setattr(one, name, value)
        return super()._answers(rows, sampling)


class RawVllm(FaultyVllm):
    """vLLM engine in its default mode: it logs the log-probabilities from before temperature, penalties and biases."""

    logprobs_mode = "raw_logprobs"


class VllmBed(Bed):
    """Set-up for injecting faults with vLLM as the sampler. Each mode of log-probabilities has its own engine, started once."""

    engines: dict[type[FaultyVllm], FaultyVllm]

    def vllm(
        self,
        precision: str,
        kind: type[FaultyVllm] = FaultyVllm,
        weights: dict[str, Tensor] | None = None,
        parameters: dict[str, Any] | None = None,
        **sampling: Any,
    ) -> FaultyVllm:
        """Return the engine of class `kind`, started at its first use, with `weights` or the policy's. parameters: vLLM's own."""
        self.engines = getattr(self, "engines", {})
        if kind not in self.engines:
            context = self.prompts.shape[1] + self.length + 1  # vLLM samples one token more to score
            self.engines[kind] = kind(self.net.config, formats(precision), context=context, kv_cache_gib=0.5)
        engine = self.engines[kind]
        engine.sampling, engine.parameters = Sampling(stop=self.stop, **sampling), parameters or {}
        engine.load_weights((weights or dict(self.net.named_parameters())).items(), 0)
        return engine

    def sampler(self, precision: str, weights: Any = None, **sampling: Any) -> VllmEngine:
        return self.vllm(precision, weights=weights, **sampling)

    def raw(self, precision: str, temperature: float) -> Rollout:
        return self.vllm(precision, RawVllm, temperature=temperature).generate(self.prompts, self.uniforms)

    def old_prefix(self, precision: str, older: dict[str, Tensor]) -> Rollout:
        """Responses sampled by the policy's weights, reusing vLLM's cache of the prompts that the weights `older` computed."""
        engine = self.vllm(precision, weights=older)
        engine.generate(self.prompts, self.uniforms)
        reset = engine.llm.reset_prefix_cache
        engine.llm.reset_prefix_cache = lambda: True
        engine.load_weights(dict(self.net.named_parameters()).items(), 0)
        engine.llm.reset_prefix_cache = reset
        return engine.generate(self.prompts, self.uniforms)

    def penalised(self, precision: str, penalty: float) -> Rollout:
        engine = self.vllm(precision, RawVllm, parameters={"presence_penalty": penalty})
        return engine.generate(self.prompts, self.uniforms)

    def cut(self, precision: str, share: float) -> Rollout:
        return self.vllm(precision, RawVllm, parameters={"min_p": share}).generate(self.prompts, self.uniforms)

    def biased(self, precision: str, bias: Tensor) -> Rollout:
        wanted = {int(token): float(bias[token]) for token in bias.nonzero()[:, 0]}
        return self.vllm(precision, RawVllm, parameters={"logit_bias": wanted}).generate(self.prompts, self.uniforms)
