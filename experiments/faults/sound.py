"""Edits that turn a dump without a fault into another one without a fault. The diagnosis must call both consistent."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from algos.batch import Batch

NEAR = -1e-6
"""Log-probability of a token that is nearly certain, in nats."""


class Columns(NamedTuple):
    """Columns of a dump: its batch [B, T], token ids, and the trainer's entropies and probabilities of a repeated token, [B, T].

    None for an absent column.
    """

    batch: Batch
    tokens: Tensor | None = None
    entropy: Tensor | None = None
    repeat_prob: Tensor | None = None


Edit = Callable[[Columns, torch.Generator], Columns]


def _stored(dtype: torch.dtype) -> Edit:
    """Return an edit that rounds both columns of log-probabilities to `dtype`, as a dump does that stores them in 16 bits."""

    def edit(dump: Columns, draws: torch.Generator) -> Columns:
        batch = dump.batch
        assert batch.logp_old is not None
        rollout, old = (column.to(dtype).float() for column in (batch.logp_rollout, batch.logp_old))
        return dump._replace(batch=batch._replace(logp_rollout=rollout, logp_old=old))

    return edit


def _certain(value: float) -> Edit:
    """Return an edit that appends one to three tokens to each response, whose log-probability is `value` in both columns."""

    def edit(dump: Columns, draws: torch.Generator) -> Columns:
        mask = dump.batch.mask
        ends = torch.where(mask, torch.arange(mask.shape[1]) + 1, 0).amax(1, keepdim=True)
        added = torch.randint(1, 4, (len(mask), 1), generator=draws)
        place = torch.arange(mask.shape[1]).expand(mask.shape)
        wider = _placed(dump, place, mask.shape[1] + 3)
        index = torch.arange(mask.shape[1] + 3)
        new = (index >= ends) & (index < ends + added)
        batch, old = wider.batch, wider.batch.logp_old
        assert old is not None
        rollout, old = (torch.where(new, value, column) for column in (batch.logp_rollout, old))
        tokens = None if wider.tokens is None else torch.where(new, wider.tokens.amax() + 1, wider.tokens)
        entropy = None if wider.entropy is None else torch.where(new, 0.0, wider.entropy)
        again = new & (index > ends)  # the added tokens are equal, so all but the first are repeated
        repeat = None if wider.repeat_prob is None else torch.where(new, again.float(), wider.repeat_prob)
        return Columns(batch._replace(logp_rollout=rollout, logp_old=old, mask=batch.mask | new), tokens, entropy, repeat)

    return edit


def _turns(dump: Columns, draws: torch.Generator) -> Columns:
    """Insert one to five tokens outside the mask into each response, at a random place. Their ids differ between responses.

    No id is one that the policy samples, so that `repeat_prob` stays the probability of all earlier tokens.
    """
    mask = dump.batch.mask
    cut = 1 + (torch.rand(len(mask), 1, generator=draws) * (mask.sum(1, keepdim=True) - 1)).long()
    span = torch.randint(1, 6, (len(mask), 1), generator=draws)
    index = torch.arange(mask.shape[1])
    wider = _placed(dump, index + (index >= cut) * span, mask.shape[1] + 5)
    if wider.tokens is None:
        return wider
    index = torch.arange(mask.shape[1] + 5)
    most = int(wider.tokens.amax()) + 1
    ids = most + torch.randint(most, wider.tokens.shape, generator=draws)
    return wider._replace(tokens=torch.where((index >= cut) & (index < cut + span), ids, wider.tokens))


def _placed(dump: Columns, place: Tensor, width: int) -> Columns:
    """Move each token of a dump to its column `place` [B, T] of `width` columns. The others are 0, and outside the mask."""

    def placed(part: Tensor | None) -> Tensor | None:
        if part is None or part.ndim == 1:
            return part
        return part.new_zeros(len(part), width).scatter(1, place, part)

    return Columns(Batch._make(map(placed, dump.batch)), *map(placed, dump[1:]))


EDITS: dict[str, Edit] = {
    "stored_bf16": _stored(torch.bfloat16),
    "stored_fp16": _stored(torch.float16),
    "certain": _certain(0.0),
    "near_certain": _certain(NEAR),
    "turns": _turns,
}
"""Edits of sound dumps, by the name of the kind that they make."""
