"""The trainer's policy: its interface, and its implementation as a causal language model under DeepSpeed ZeRO."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from harness.config import ActorConfig
from harness.rollouts.architecture import expert_count
from harness.rollouts.recorded import Recorded
from harness.rollouts.routes import Routes, no_route
from harness.tasks import PAD
from harness.train.model import adapters
from harness.train.model.engine import DeepSpeedModel
from harness.train.model.frozen import placed, scoring_model
from harness.train.model.layout import can_share
from harness.train.routing.hooks import RoutingHooks


class Saved(Protocol):
    """A model with its optimizer, which can be written to a checkpoint and read from it."""

    def save(self, folder: Path) -> None:
        """Write weights and optimizer state under `folder`, which every rank sees."""

    def load(self, folder: Path, ranks: int) -> None:
        """Read the state that `save` wrote on `ranks` ranks. It is exact on as many ranks, else up to rounding.

        With masters=kahan or adapters merged in place, above ZeRO stage 0, it raises UserError on a different number of ranks,
        because DeepSpeed does not divide the compensation, or the frozen weights, anew. Other frozen weights are the model's.
        """


class Policy(Protocol):
    """A policy whose log-probabilities a forward pass gives."""

    def logp(self, prompts: Tensor, tokens: Tensor, replay: Recorded | None = None) -> tuple[Tensor, Tensor]:
        """Return (log π of the tokens, entropy of π at each), both [B, T] in fp32 nats, with gradient if it is trained.

        0 on padding. Prompts [B, P] may be padded on the left, tokens [B, T] on the right. replay: experts that a mixture
        takes, [B, P + T − 1, layers, k], and tokens over which π is renormalised, [B, T, ⌈V/8⌉] bits.
        """


class Actor(Saved, Policy, Protocol):
    """The trainer's policy and its optimizer.

    Life cycle: for each optimizer step `logp` and `backward` once per micro-batch, then `step`; several calls of `logp` may
    precede `backward`. Between steps the weights can be read, saved and loaded. Every rank makes the same calls in the same
    order, each with its own rows.
    """

    def route(self, prompts: Tensor, tokens: Tensor, replay: Recorded | None = None) -> tuple[Tensor, Routes]:
        """Return (log π_θ [B, T] in nats without gradient, experts of the forward pass). Only for a mixture of experts."""

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Accumulate the gradient of `loss`. last: whether this is the last micro-batch before the optimizer step."""

    def step(self, lr: float | None = None) -> float | None:
        """Take an optimizer step along the gradient, summed over micro-batches and ranks. lr: learning rate; None: the config's.

        Returns the global gradient norm before clipping; None if the step was skipped, for example after an fp16 overflow.
        """

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Iterate over all weights under their transformers names, in the actor's dtype, with adapters apart."""

    def synced_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Iterate over the weights that a rollout engine gets: `weights`, with adapters merged as actor.lora.sync says.

        Under merged_in_place each call moves the frozen weights, so it is called once for a version of the weights.
        """


class DeepSpeedActor(DeepSpeedModel):
    """An actor under DeepSpeed ZeRO stage 0 to 3, with AdamW, on all ranks.

    temperature: divisor of the logits. seed: seed of the adapters' first values.
    """

    def __init__(self, model: PreTrainedModel, config: ActorConfig, *, temperature: float = 1.0, seed: int = 0):
        if config.lora is not None:
            adapters.add_adapters(model, config.lora, seed)
        model = placed(model.train(), config)
        self.routing = RoutingHooks(model)
        if config.gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        super().__init__(scoring_model(model, config, temperature), config, shares=can_share(model.config))

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        return super().weights() if self.config.lora is None else adapters.apart(super().weights())

    def synced_weights(self) -> Iterator[tuple[str, Tensor]]:
        match self.config.lora and self.config.lora.sync:
            case "merged":
                return adapters.merged(self.engine.module)
            case "merged_in_place":
                return adapters.merged_in_place(self.engine.module)
        return self.weights()

    def logp(self, prompts: Tensor, tokens: Tensor, replay: Recorded | None = None) -> tuple[Tensor, Tensor]:
        logp, entropy = self.distinct_by_token(prompts, tokens, replay)
        return logp, entropy

    @torch.no_grad()
    def route(self, prompts: Tensor, tokens: Tensor, replay: Recorded | None = None) -> tuple[Tensor, Routes]:
        prompts, tokens, replay, place = self.distinct_rows(prompts, tokens, replay)
        with self.routing.record() as layers:
            logp, _ = self.by_token(prompts, tokens, replay)
        present = torch.cat([part != PAD for part in (prompts, tokens)], 1)
        columns = present.any(0).nonzero()[:-1, 0]
        shape = self.engine.module.config
        routes = Routes.unrouted(
            len(tokens), present.shape[1] - 1, len(layers), shape.num_experts_per_tok, expert_count(shape), logp.device
        )
        routes.put(slice(None), columns, Routes.stack(layers, len(tokens)))
        computed = present[:, :-1] & present[:, 1:]  # as in an engine, which computes no last token
        routes.ids.masked_fill_(~computed[..., None, None], no_route(routes.ids.dtype))
        return logp[place], routes.of(place)
