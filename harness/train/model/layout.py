"""Arrangement of prompts and responses as the rows of one forward pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PretrainedConfig

from harness.rollouts.architecture import MODELS, expert_count
from harness.rollouts.recorded import Recorded
from harness.tasks import PAD
from harness.train.routing.hooks import ARGUMENT

SHARED, LONGEST, WORTH = 32, 1024, 0.75
"""Limits for responses that share a row with their prompt: minimum prompt length, maximum row length, both in tokens, and
maximum share of tokens left to compute. A custom attention mask compares every pair of places in a row, so long rows would
lose the gain."""


class Layout(NamedTuple):
    """Prompts and responses in the form that a model reads, without columns of padding alone.

    input_ids: [B, L]. targets: [B, T'], the tokens that the last T' places predict. places: further arguments of the model:
    attention mask and positions if rows are padded, routes and support if they are replayed, `at` if responses share a row. mask:
    [B, T'], the targets that are not padding. length: T.
    """

    input_ids: Tensor
    targets: Tensor
    places: dict[str, Any]
    mask: Tensor
    length: int

    @classmethod
    def of(cls, prompts: Tensor, tokens: Tensor, replay: Recorded | None = None) -> Layout:
        """Lay out each prompt and its response as one row. prompts: [B, P]. tokens: [B, T]. replay: records of the responses."""
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

    @classmethod
    def shared(cls, prompts: Tensor, tokens: Tensor) -> Layout | None:
        """Lay out each prompt once, in a row [U, P + k (T' − 1)] with its responses, at most k. None if that saves too little.

        A response sees its prompt and itself, at the positions that it would have alone. `at` [B, T'] in `places` is the flat
        place that predicts each target. The last token of a prompt predicts the first token of each of its responses.
        """
        prompts, written = (part[:, (part != PAD).any(0)] for part in (prompts, tokens))
        asked, place, counts = prompts.unique(dim=0, return_inverse=True, return_counts=True)
        (rows, length), (size, after) = asked.shape, (len(written), written.shape[1] - 1)
        most = int(counts.max())
        width = length + most * after
        if length < SHARED or width > LONGEST or rows * width > WORTH * size * (length + after):
            return None
        order = place.argsort(stable=True)
        slot = torch.empty_like(place)
        slot[order] = torch.arange(size, device=place.device) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        ids = torch.full((rows, width), PAD, dtype=prompts.dtype, device=prompts.device)
        ids[:, :length] = asked
        begins = length + slot * after
        column = torch.arange(after, device=place.device)
        ids[place[:, None], begins[:, None] + column] = written[:, :-1]
        present = ids != PAD
        before = (present[:, :length].sum(1, keepdim=True) + column.repeat(most)[None]).expand(rows, -1)
        positions = torch.cat([(present[:, :length].cumsum(-1) - 1).clamp(min=0), before], 1)
        at = torch.cat([(place * width + length - 1)[:, None], (place * width + begins)[:, None] + column], 1)
        places = {"attention_mask": _visible(present, length, after), "position_ids": positions, "at": at}
        return cls(ids.clamp(min=0), written.clamp(min=0), places, written != PAD, tokens.shape[1])

    def whole(self, values: Tensor) -> Tensor:
        """Expand values of the targets [B, T'] to the whole responses [B, T], with 0 on padding."""
        missing = self.length - self.mask.shape[1]
        if not missing and self.mask.all():
            return values
        return torch.nn.functional.pad(torch.where(self.mask, values, 0.0), (0, missing))


def can_share(config: PretrainedConfig) -> bool:
    """Whether responses to one prompt may share a row: the model is dense, of a type in MODELS, without a sliding window."""
    return config.model_type in MODELS and not expert_count(config) and getattr(config, "sliding_window", None) is None


def _visible(present: Tensor, prompt: int, after: int) -> Tensor:
    """Attention mask [U, 1, L, L]: a place sees itself, and earlier tokens of its prompt and of its own response."""
    place = torch.arange(present.shape[1], device=present.device)
    response = torch.where(place < prompt, -1, (place - prompt) // max(after, 1))
    of_prompt_or_own = (response == -1)[None] | (response[:, None] == response[None])
    earlier = place[:, None] >= place[None]
    return ((earlier & of_prompt_or_own)[None] & present[:, None] | (place[:, None] == place[None]))[:, None]
