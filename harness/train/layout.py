"""Prompts and responses as the rows of one forward pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from harness.rollouts.recorded import Recorded
from harness.tasks import PAD
from harness.train.routing import ARGUMENT


class Layout(NamedTuple):
    """What a model reads of prompts and responses. Columns of padding alone are left out.

    input_ids: [B, L]. targets: [B, T'], the tokens that the last T' places predict. places: attention mask and positions where
    rows are padded; routes and support where they are replayed. mask: [B, T'], the targets that are no padding. length: T.
    """

    input_ids: Tensor
    targets: Tensor
    places: dict[str, Any]
    mask: Tensor
    length: int

    @classmethod
    def of(cls, prompts: Tensor, tokens: Tensor, replay: Recorded | None = None) -> Layout:
        """prompts: [B, P]. tokens: [B, T]. replay: of the responses."""
        asked, answered = ((part != PAD).any(0) for part in (prompts, tokens))
        prompts, written = prompts[:, asked], tokens[:, answered]
        ids = torch.cat([prompts, written], dim=1)
        present = ids != PAD
        places: dict[str, Any] = {}
        if not present.all():
            positions = (present.cumsum(-1) - 1).clamp(min=0)
            places = {"attention_mask": present[:, :-1], "position_ids": positions[:, :-1]}
        if replay is not None and replay.routes is not None:
            places[ARGUMENT] = replay.routes.of(slice(None), torch.cat([asked, answered]).nonzero()[:-1, 0])
        if replay is not None and replay.support is not None:
            places["support"] = replay.support[:, answered]
        ids = ids.clamp(min=0)
        return cls(ids[:, :-1], ids[:, -written.shape[1] :], places, written != PAD, tokens.shape[1])

    def whole(self, values: Tensor) -> Tensor:
        """values of the targets [B, T'] -> of the responses [B, T], 0 on padding."""
        missing = self.length - self.mask.shape[1]
        if not missing and self.mask.all():
            return values
        return torch.nn.functional.pad(torch.where(self.mask, values, 0.0), (0, missing))
