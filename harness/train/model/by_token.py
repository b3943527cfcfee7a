"""Calls of a model that outputs numbers for each token of a response, and π_ref, a policy that is never trained."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from harness.config import ActorConfig
from harness.models import DTYPES, device
from harness.rollouts.recorded import Recorded
from harness.train.model.equal_rows import Index, distinct
from harness.train.model.head import ScoringModel
from harness.train.model.layout import Layout, can_share
from harness.train.model.straight_through import cast_linear_layers


class ByToken:
    """Calls a model that outputs numbers for each token of a response.

    module: maps `input_ids` [B, L] and `targets` [B, T], which the last T tokens predict, to a tuple of tensors [B, T]. here:
    its device. shares: whether responses to one prompt may share a row (`Layout.shared`).
    """

    def __init__(self, module: nn.Module, here: torch.device, *, shares: bool):
        self.module, self.here, self.shares = module, here, shares

    def distinct_rows(
        self, prompts: Tensor, tokens: Tensor, replay: Recorded | None = None
    ) -> tuple[Tensor, Tensor, Recorded | None, Index]:
        """Keep one of each group of equal rows. Returns (prompts, responses, records to replay, group number of each row)."""
        prompts, tokens = prompts.to(self.here), tokens.to(self.here)
        replay = None if replay is None else replay.map(lambda part: part.to(self.here))
        first, place = distinct(prompts, tokens, replay)
        return prompts[first], tokens[first], None if replay is None else replay.of(first), place

    def by_token(self, prompts: Tensor, tokens: Tensor, replay: Recorded | None = None) -> list[Tensor]:
        """Outputs of the module, [B, T] each, 0 on padding. Responses share their prompt's forward pass if that saves enough."""
        shared = Layout.shared(prompts, tokens) if self.shares and replay is None else None
        layout = shared or Layout.of(prompts, tokens, replay)
        given = self.module(input_ids=layout.input_ids, targets=layout.targets, **layout.places)
        return [layout.whole(values) for values in given]

    def distinct_by_token(self, prompts: Tensor, tokens: Tensor, replay: Recorded | None = None) -> list[Tensor]:
        """Outputs of the module, [B, T] each, 0 on padding. Equal rows are computed once."""
        prompts, tokens, replay, place = self.distinct_rows(prompts, tokens, replay)
        return [values[place] for values in self.by_token(prompts, tokens, replay)]


class FrozenPolicy:
    """The policy π_ref of a KL term: weights in actor.dtype, whole on every rank, and the actor's forward pass.

    While π_θ has the same weights, log π_ref has the bits of log π_θ, and the KL term is 0, but for the rounding of
    actor.compile. temperature: divisor of the logits.
    """

    def __init__(self, net: PreTrainedModel, config: ActorConfig, temperature: float):
        net = net.eval().to(device=device(), dtype=DTYPES[config.dtype])  # type: ignore[call-arg]
        if config.precision is not None:
            cast_linear_layers(net, config.precision)
        scoring = ScoringModel(net, temperature).requires_grad_(False)
        self.model = ByToken(scoring, net.device, shares=can_share(net.config))

    def logp(self, prompts: Tensor, tokens: Tensor, replay: Recorded | None = None) -> tuple[Tensor, Tensor]:
        """Return (log π_ref of the tokens in nats, entropy of π_ref at each), both [B, T]; 0 on padding. As `Actor.logp`."""
        logp, entropy = self.model.distinct_by_token(prompts, tokens, replay)
        return logp, entropy
