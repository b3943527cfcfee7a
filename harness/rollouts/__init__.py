"""Rollout engines, which sample the responses: their interface and their registry. `local` is embedded, `vllm` is vLLM."""

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
"""How much an engine reports of the routes of a mixture: `Rollout.expert_ids` and `Rollout.expert_weights`."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How an engine samples: the settings that every engine takes."""

    kv_cache: str = "compute"
    """Dtype of the KV cache: "compute" for the precision's compute dtype, else fp8_e4m3 or fp8_e5m2 with scale 1."""
    temperature: float = 1.0
    """Softmax temperature."""
    top_p: float = 1.0
    """Sample from the most probable tokens of this much mass; 1 for all."""
    top_k: int = 0
    """Sample from at most so many of the most probable tokens; 0 for all."""
    stop: tuple[int, ...] = ()
    """Tokens that end a response."""
    record_support: bool = False
    """Give `Rollout.support`, the tokens that top_p and top_k left. See `RolloutEngine.support_refusal`."""

    @property
    def truncated(self) -> bool:
        """Whether top_p or top_k cuts probability away."""
        return self.top_p < 1 or self.top_k > 0


UNTRUNCATED = Sampling()


class Rollout(NamedTuple):
    """One batch of responses, [B, T] each.

    tokens: int64, PAD after a stop token. logp: fp32 nats, log μ of the token under the distribution that it was drawn from, by
    the forward pass that drew it; 0 on PAD. version: int64, of the weights that drew the token. expert_ids, expert_weights: the
    routes taken by that pass (`routes.Routes`); None of a dense model, or where the engine does not report them. support: the
    tokens that top_p and top_k left at each place (`recorded.Recorded`); None without `Sampling.record_support`.
    turns: int64, the number of the token's turn. environment: bool, the tokens that the environment wrote; their logp is 0. Both
    are None for a task without an environment (`turns.py`).
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
        """[B, T] bool: the tokens that the policy wrote."""
        present = self.tokens != PAD
        return present if self.environment is None else present & ~self.environment

    @property
    def mask(self) -> Tensor:
        """[B, T] bool: the tokens that can be trained on, since the engine reported a finite log-probability."""
        return self.written & self.logp.isfinite()


class RolloutEngine(ABC):
    """Samples responses with the weights that it was given.

    Life cycle: `check`, then built as `Engine(shape, precision, sampling, **params)`. Then for each version of the weights
    `load_weights`, any number of `generate` and `greedy`, and maybe `sleep`. `close` at last.

    shape: the transformers config.
    params: keyword-only and an engine's own. The config names them under `rollout.engine`, and the signature bounds them.
    """

    tolerance: float | None = None
    """Nats by which a load may be off the actor's log-probabilities (`check_weights.py`); None if a load cannot go wrong."""

    @classmethod
    @abstractmethod
    def check(cls, shape: PretrainedConfig, precision: PrecisionConfig, kv_cache: str, **params: Any) -> None:
        """Raise UserError, naming the alternatives, if this engine cannot compute so on this machine. Builds nothing."""

    @classmethod
    def reports_routes(cls) -> ReportedRoutes:
        """How much the rollouts of a mixture of experts report of their routes on this machine."""
        return "nothing"

    @classmethod
    def support_refusal(cls, top_k: int) -> str | None:
        """Why this engine cannot report the tokens that truncation left; None where it can, by `Sampling.record_support`."""
        return "it does not tell the tokens that it sampled from; use rollout/engine=local"

    @abstractmethod
    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take the trainer's weights under their transformers names and cast them to the engine's own precision.

        After an exception the engine holds no weights that could be sampled from.
        """

    @abstractmethod
    def generate(self, prompts: Tensor, uniforms: Tensor) -> Rollout:
        """One response per row. prompts: [B, P] int64, PAD on the left of shorter ones. uniforms: [B, T] in [0, 1), the only
        source of randomness."""

    def resume(self, prompts: Tensor, begun: Tensor, going: Tensor, uniforms: Tensor) -> Rollout:
        """n more tokens of the R responses in `going` [B] bool, which began as `begun` [B, t] after the prompts [B, P].

        uniforms: [B, n]. The present weights compute everything anew. Tokens, log-probabilities, versions and support are [R, n];
        routes are of prompt, beginning and new tokens together.
        """
        there = going.to(uniforms.device)
        return self.generate(torch.cat([prompts, begun], 1)[going], uniforms[there])

    @abstractmethod
    def score(self, prompts: Tensor, tokens: Tensor) -> Tensor:
        """log μ [B, T] in nats of given tokens with the present weights, 0 on PAD.

        prompts: [B, P] as in `generate`. tokens: [B, T] as in a Rollout.
        """

    def sleep(self) -> None:  # noqa: B027  an engine that shares no memory with the actor has none to lend
        """Lend device memory to the actor. `load_weights` takes it back, and must come before the next `generate`."""

    @abstractmethod
    def greedy(self, prompts: Tensor, length: int) -> Tensor:
        """Tokens [B, length] as in a Rollout, the most probable one at each place."""

    def close(self) -> None:  # noqa: B027  an engine that holds nothing has nothing to give back
        """Free device memory and end processes."""
