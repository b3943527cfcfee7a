"""Interface and registry of the rollout engines, which sample the responses. `local` is built in; `vllm` calls vLLM."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from algos.registry import Registry
from harness.config import PrecisionConfig
from harness.tasks import PAD

if TYPE_CHECKING:
    from transformers import PretrainedConfig  # `doctor` describes the machine without it

ENGINES = Registry("engines", {"local": "harness.rollouts.local:LocalEngine", "vllm": "harness.rollouts.vllm:VllmEngine"})


ReportedRoutes = Literal["nothing", "experts", "experts and weights"]
"""Data that an engine reports on the experts that it chose for each token: nothing, their ids, or their routing weights too."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Sampling settings that every rollout engine takes."""

    kv_cache: str = "compute"
    """Dtype of the KV cache: fp8_e4m3, fp8_e5m2 (both at scale 1 by default), or "compute", the precision's compute dtype."""
    temperature: float = 1.0
    """Softmax temperature."""
    top_p: float = 1.0
    """Probability mass of the most probable tokens that can be sampled; 1 for all tokens."""
    top_k: int = 0
    """Maximum number of tokens that can be sampled, the most probable ones; 0 for all tokens."""
    stop: tuple[int, ...] = ()
    """Tokens that end a response."""
    record_support: bool = False
    """Whether rollouts record the set of tokens that top_p and top_k left to sample from. Some engines cannot report the set."""

    @property
    def truncated(self) -> bool:
        """Whether top_p or top_k excludes tokens from sampling."""
        return self.top_p < 1 or self.top_k > 0


UNTRUNCATED = Sampling()


class Rollout(NamedTuple):
    """One batch of responses, as tensors of shape [B, T] where no other shape is given.

    tokens: int64, PAD after a stop token. logp: fp32 nats, log μ of each token under the distribution that it was drawn from,
    by the forward pass that drew it; 0 on PAD. version: int64, version of the weights that drew the token. expert_ids,
    expert_weights [B, P + T − 1, layers, k]: experts chosen in that forward pass (`routes.Routes`); None for a dense model,
    or if the engine does not report them. support [B, T, ⌈V/8⌉]: tokens that top_p and top_k left to sample from
    (`recorded.Recorded`); None without `Sampling.record_support`. turns: int64, number of the token's turn, from 0.
    environment: bool, tokens that the environment wrote; their logp is 0. turns and environment are None for a task without
    an environment (`turns.py`).
    """

    tokens: Tensor
    logp: Tensor
    version: Tensor
    expert_ids: Tensor | None = None
    expert_weights: Tensor | None = None
    support: Tensor | None = None
    turns: Tensor | None = None
    environment: Tensor | None = None

    @property
    def written(self) -> Tensor:
        """Mask of the tokens that the policy wrote, [B, T] bool."""
        present = self.tokens != PAD
        return present if self.environment is None else present & ~self.environment

    @property
    def mask(self) -> Tensor:
        """Mask of the tokens that can be trained on, [B, T] bool: written by the policy, with a finite log-probability."""
        return self.written & self.logp.isfinite()


class RolloutEngine(ABC):
    """Interface of a rollout engine, which samples responses with the weights that it was given.

    Life cycle: `check`, then the constructor `Engine(shape, precision, sampling, **params)`. For each version of the weights
    come `load_weights`, any number of `generate`, `score` and `greedy`, and optionally `sleep`. `close` comes last.

    shape: the transformers config. params: keyword-only parameters of one engine. The config names them under
    `rollout.engine`; the signature bounds their values.
    """

    tolerance: float | None = None
    """Maximum mean |log μ − log π| of engine and actor after loading weights, in nats; None if loads need no check."""

    @classmethod
    @abstractmethod
    def check(cls, shape: PretrainedConfig, precision: PrecisionConfig, kv_cache: str, **params: Any) -> None:
        """Raise UserError, naming the alternatives, if this engine cannot run with these settings on this machine."""

    @classmethod
    def reports_routes(cls) -> ReportedRoutes:
        """Data on each token's experts that rollouts report on this machine: nothing, their ids, or routing weights too."""
        return "nothing"

    @classmethod
    def support_refusal(cls, top_k: int) -> str | None:
        """Reason why this engine cannot record which tokens top_p and top_k left to sample from; None if it can."""
        return "it does not tell the tokens that it sampled from; use rollout/engine=local"

    @abstractmethod
    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take the trainer's weights, by transformers name, in the engine's precision. On an error the engine has no weights.

        Adapters apart from their weights are named as in PEFT, with ".lora_A.weight" and ".lora_B.weight" in place of ".weight".
        """

    @abstractmethod
    def generate(self, prompts: Tensor, uniforms: Tensor) -> Rollout:
        """Sample one response per row of prompts [B, P], padded on the left, by random numbers `uniforms` [B, T] in [0, 1)."""

    def resume(self, prompts: Tensor, begun: Rollout, going: Tensor, uniforms: Tensor) -> Rollout:
        """Sample n more tokens of the R responses for which `going` [B] is true. By default their context is recomputed.

        prompts: [B, P]. begun: the responses so far, [B, t]. uniforms: random numbers [B, n]. Returns the new tokens, [R, n].
        The experts returned (routes) also cover the prompts and the responses so far.
        """
        there = going.to(uniforms.device)
        return self.generate(torch.cat([prompts, begun.tokens], 1)[going], uniforms[there])

    @abstractmethod
    def score(self, prompts: Tensor, tokens: Tensor) -> Tensor:
        """Return the engine's log-probabilities [B, T], in nats, of responses `tokens` [B, T] to prompts [B, P]; 0 on PAD."""

    def sleep(self) -> None:  # noqa: B027  an engine that shares no memory with the actor has none to lend
        """Lend the engine's device memory to the actor. `load_weights` takes it back, and must precede the next `generate`."""

    @abstractmethod
    def greedy(self, prompts: Tensor, length: int) -> Tensor:
        """Answer each prompt by the most probable token at each position: [B, length], with PAD after a stop token."""

    def state(self) -> dict[str, Tensor]:
        """Tensors by name that a checkpoint must keep, beside the weights, for this engine to continue a run; often empty."""
        return {}

    def restore(self, state: dict[str, Tensor]) -> None:  # noqa: B027  an engine without a state has nothing to restore
        """Give the engine of a resumed run the tensors that `state` returned when the checkpoint was written."""

    def close(self) -> None:  # noqa: B027  an engine that holds nothing has nothing to give back
        """Free the engine's device memory and end its processes."""
