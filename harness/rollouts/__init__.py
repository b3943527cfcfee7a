"""Rollout engines: what samples. `local` is embedded; the trainer knows an engine only by this protocol."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from torch import Tensor

from algos.registry import Registry

ENGINES = Registry("engines", {"local": "harness.rollouts.local:LocalEngine"})


class Rollout(NamedTuple):
    """One batch of responses.

    tokens [B, T] int64; logp [B, T] fp32, nats: log μ(token), from the forward pass that sampled it; version: of the weights.
    """

    tokens: Tensor
    logp: Tensor
    version: int


class RolloutEngine(Protocol):
    """Life cycle: built with random or no weights, then `load_weights`, then any number of `generate`."""

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take the trainer's weights under their transformers names and cast them to the engine's own precision."""

    def generate(self, prompts: Tensor, uniforms: Tensor) -> Rollout:
        """One response per row. prompts [B, P] int64; uniforms [B, T] in [0, 1) are all the randomness there is."""
