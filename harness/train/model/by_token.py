"""Calls of a model that outputs numbers for each token of a response."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from harness.rollouts.recorded import Recorded
from harness.train.model.equal_rows import Index, distinct
from harness.train.model.layout import Layout


class ByToken:
    """Calls a model that outputs numbers for each token of a response.

    model: maps `input_ids` [B, L] and `targets` [B, T], which the last T tokens predict, to a tuple of tensors [B, T]. here:
    its device. shares: whether responses to one prompt may share a row (`Layout.shared`).
    """

    def __init__(self, model: nn.Module, here: torch.device, *, shares: bool):
        self.model, self.here, self.shares = model, here, shares

    def distinct_rows(
        self, prompts: Tensor, tokens: Tensor, replay: Recorded | None = None
    ) -> tuple[Tensor, Tensor, Recorded | None, Index]:
        """Keep one of each group of equal rows. Returns (prompts, responses, records to replay, group number of each row)."""
        prompts, tokens = prompts.to(self.here), tokens.to(self.here)
        replay = None if replay is None else replay.map(lambda part: part.to(self.here))
        first, place = distinct(prompts, tokens, replay)
        return prompts[first], tokens[first], None if replay is None else replay.of(first), place

    def by_token(self, prompts: Tensor, tokens: Tensor, replay: Recorded | None = None) -> list[Tensor]:
        """Outputs of the model, [B, T] each, 0 on padding. Responses share their prompt's forward pass if that saves enough."""
        shared = Layout.shared(prompts, tokens) if self.shares and replay is None else None
        layout = shared or Layout.of(prompts, tokens, replay)
        given = self.model(input_ids=layout.input_ids, targets=layout.targets, **layout.places)
        return [layout.whole(values) for values in given]

    def distinct_by_token(self, prompts: Tensor, tokens: Tensor, replay: Recorded | None = None) -> list[Tensor]:
        """Outputs of the model, [B, T] each, 0 on padding. Equal rows are computed once."""
        prompts, tokens, replay, place = self.distinct_rows(prompts, tokens, replay)
        return [values[place] for values in self.by_token(prompts, tokens, replay)]
