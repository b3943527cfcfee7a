"""The trainer's policy: what it must offer, and DeepSpeed ZeRO around a causal language model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from harness.config import ActorConfig
from harness.models import DTYPES, device
from harness.rollouts.architecture import expert_count
from harness.rollouts.recorded import Recorded
from harness.rollouts.routes import Routes, no_route
from harness.tasks import PAD
from harness.train.model.engine import DeepSpeedModel
from harness.train.model.head import ScoringModel
from harness.train.model.layout import can_share
from harness.train.model.straight_through import cast_linear_layers
from harness.train.ranks import join
from harness.train.routing.hooks import RoutingHooks


class Saved(Protocol):
    """A model with its optimizer, as checkpoints hold them."""

    def save(self, folder: Path) -> None:
        """Write model and optimizer under `folder`, which every rank sees."""

    def load(self, folder: Path, ranks: int) -> None:
        """Read what `save` wrote on `ranks` ranks: to the bit on as many ranks, up to rounding on another number."""


class Actor(Saved, Protocol):
    """The trainer's policy and its optimizer.

    Life cycle: for each optimizer step `logp` and `backward` once per micro-batch, then `step`. Between steps the weights can be
    read, saved and loaded. Every rank makes the same calls in the same order, each with its own rows.
    """

    def logp(self, prompts: Tensor, tokens: Tensor, replay: Recorded | None = None) -> tuple[Tensor, Tensor]:
        """(log π_θ of the tokens, entropy of π_θ at each of them), both [B, T] in fp32 nats, with gradient.

        Equal rows are computed once. Prompts [B, P] may be padded with PAD on the left, tokens [B, T] on the right; there both
        results are 0.
        replay: the experts that a mixture is to take, [B, P + T − 1, layers, k], and the tokens over which both are renormalised,
        [B, T, ⌈V/8⌉]. The backward pass may come later.
        """

    def route(self, prompts: Tensor, tokens: Tensor, replay: Recorded | None = None) -> tuple[Tensor, Routes]:
        """(`logp` without gradient, routes that its forward took). Of a mixture of experts alone."""

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradient of `loss` to that of the coming step. last: whether this is the step's last micro-batch."""

    def step(self, lr: float | None = None) -> float | None:
        """One optimizer step along the gradient, which is summed over micro-batches and ranks. lr: None is that of the config.

        Returns the global norm before clipping; None if the step was skipped, as a loss scaler does when fp16 gradients overflow.
        """

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """All weights under their transformers names, in the actor's dtype."""


class DeepSpeedActor(DeepSpeedModel):
    """ZeRO stage 0 to 3 on all ranks of the run; AdamW, clipped by global norm. temperature: divides the logits."""

    def __init__(self, model: PreTrainedModel, config: ActorConfig, *, temperature: float = 1.0):
        join()  # which chooses this rank's device
        # Before a GPU holds it: a whole model in fp32 may not fit. DeepSpeed's own cast, which comes next, finds nothing to do.
        model = model.train().to(device=device(), dtype=DTYPES[config.dtype])  # type: ignore[call-arg]
        self.routing = RoutingHooks(model)
        if config.precision is not None:
            cast_linear_layers(model, config.precision)
        if config.gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        scoring = ScoringModel(model, temperature)
        if config.compile:
            scoring.model.compile(dynamic=True)  # equal rows leave another number of rows in each step
        super().__init__(scoring, config, shares=can_share(model.config))

    def logp(self, prompts: Tensor, tokens: Tensor, replay: Recorded | None = None) -> tuple[Tensor, Tensor]:
        prompts, tokens, replay, place = self.distinct_rows(prompts, tokens, replay)
        logp, entropy = self.by_token(prompts, tokens, replay)
        return logp[place], entropy[place]

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
