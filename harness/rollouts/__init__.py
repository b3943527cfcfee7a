"""Rollout engines, which sample the responses: their interface and their registry. `local` is embedded, `vllm` is vLLM."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from algos.registry import Registry
from harness.config import PrecisionConfig
from harness.tasks import PAD

if TYPE_CHECKING:
    from transformers import PretrainedConfig  # `doctor` describes the machine without it

ENGINES = Registry("engines", {"local": "harness.rollouts.local:LocalEngine", "vllm": "harness.rollouts.vllm:VllmEngine"})


Told = Literal["nothing", "experts", "experts and weights"]
"""What an engine says of the routes of a mixture: `Rollout.expert_ids` and `Rollout.expert_weights`."""


class Rollout(NamedTuple):
    """One batch of responses, [B, T] each.

    tokens: int64, PAD after a stop token. logp: fp32 nats, log μ of the token under the distribution that it was drawn from, by
    the forward pass that drew it; 0 on PAD. version: int64, of the weights that drew the token. expert_ids, expert_weights: the
    routes taken by that pass (`routes.Routes`); None of a dense model, or where the engine does not tell them. support: the
    tokens that top_p and top_k left at each place (`recorded.Recorded`); None of an engine not built with `record_support`.
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

    Life cycle: `check`, then built as `Engine(shape, precision, *, kv_cache, temperature, top_p, top_k, stop, **params)`. Then
    for each version of the weights `load_weights`, any number of `generate` and `greedy`, and maybe `sleep`. `close` at last.

    shape: the transformers config. params: keyword-only and an engine's own; the config's `rollout.engine` names them, and they
    are checked against the signature.
    """

    tolerance: float | None = None
    """Nats by which the log-probabilities may be off the actor's after a load (`sync.py`); None if a load cannot go wrong."""

    @classmethod
    @abstractmethod
    def check(cls, shape: PretrainedConfig, precision: PrecisionConfig, kv_cache: str, **params: Any) -> None:
        """Raise UserError, naming the alternatives, if this engine cannot compute so on this machine. Builds nothing."""

    @classmethod
    def tells(cls) -> Told:
        """What the rollouts of a mixture of experts say of their routes on this machine."""
        return "nothing"

    @classmethod
    def support_refusal(cls, top_k: int) -> str | None:
        """Why this engine cannot tell the tokens that truncated sampling left, None where it can. An engine that can takes the
        keyword `record_support`, and then gives `Rollout.support`."""
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
