"""Rollout engines: what samples. `local` is embedded, `vllm` is vLLM; the trainer knows an engine only by this interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor
from transformers import PretrainedConfig

from algos.registry import Registry
from harness.config import PrecisionConfig

ENGINES = Registry("engines", {"local": "harness.rollouts.local:LocalEngine", "vllm": "harness.rollouts.vllm:VllmEngine"})


class Rollout(NamedTuple):
    """One batch of responses, [B, T] each.

    tokens int64, PAD after a stop token; logp fp32, nats: log μ(token) under the distribution that it was drawn from, from the
    forward pass that drew it, 0 on PAD; version int64: of the weights that drew it. expert_ids, expert_weights: the routes taken
    by that pass (`routes.Routes`), None of a dense model or where the engine does not tell them.
    """

    tokens: Tensor
    logp: Tensor
    version: Tensor
    expert_ids: Tensor | None = None
    expert_weights: Tensor | None = None


class RolloutEngine(ABC):
    """Life cycle: `check`, then built as `Engine(shape, precision, *, kv_cache, temperature, top_p, top_k,
    stop, **params)`, then `load_weights`, then any number of `generate` and `greedy`; new weights at any time; `close` at last.

    shape: the transformers config. params: keyword-only, an engine's own; the config's `rollout.engine` names them, and they are
    checked against the signature.
    """

    routes: bool = False
    """Whether the rollouts of a mixture of experts tell the experts taken, in `Rollout.expert_ids`."""
    tolerance: float | None = None
    """Where another library loads the weights: how far, in nats, its answers may be off the actor's after a load (`sync.py`)."""

    @classmethod
    @abstractmethod
    def check(cls, shape: PretrainedConfig, precision: PrecisionConfig, kv_cache: str, **params: Any) -> None:
        """Raise UserError, with what is possible instead, if this engine cannot compute so on this machine. Builds nothing.

        params: its own that the config names.
        """

    @abstractmethod
    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take the trainer's weights under their transformers names and cast them to the engine's own precision.

        After an exception the engine holds no weights that could be sampled from.
        """

    @abstractmethod
    def generate(self, prompts: Tensor, uniforms: Tensor) -> Rollout:
        """One response per row. prompts [B, P] int64, PAD on the left of shorter ones; uniforms [B, T] in [0, 1) are all the
        randomness there is."""

    def sleep(self) -> None:  # noqa: B027  an engine that shares no memory with the actor has none to lend
        """Lend device memory to the actor; the next `load_weights` takes it back, and comes before the next `generate`."""

    @abstractmethod
    def greedy(self, prompts: Tensor, length: int) -> Tensor:
        """The most probable token at each place, up to a stop token or `length`: tokens [B, length] as in a Rollout."""

    def close(self) -> None:  # noqa: B027  an engine that holds nothing has nothing to give back
        """Give back what the engine holds: device memory, processes."""
