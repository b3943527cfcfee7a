"""Diagnostics in two steps, so that a number does not depend on how the batch is split.

A `*_rows` function reduces each response to a few fp64 numbers; rows of micro-batches and ranks are concatenated; a
`finish_*` function reduces the rows of the whole batch: a maximum is then a maximum, and an ESS that of the global
batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from algos.masks import compared

Rows = dict[str, Tensor]
"""Name -> one number per response, [B], or one per bin, [B, bins]; fp64 once merged."""


CHUNK = 1 << 17
"""Elements that a CPU works on at once, or a quarter of a smaller batch: most intermediate tensors then stay in its caches, and
all of them together are few beside the batch."""

SAMPLED = 16
"""Lengths are compared by every so many columns of the mask: enough to put responses of like length together."""


class Part(NamedTuple):
    """Some responses of a batch, by their numbers, [N], and how many columns hold their tokens; or a slice of the batch."""

    rows: Tensor | slice
    width: int


def merge(parts: Sequence[Rows]) -> Rows:
    """The rows of several micro-batches or ranks as those of one batch."""
    return {name: torch.cat([part[name] for part in parts]).double() for name in parts[0]}


def parts(mask: Tensor, *, trim: bool = True) -> list[Part]:
    """On a CPU a few responses at a time, of like length and without their padding; other devices take all at once.

    `trim=False`: in the batch's own order, with the padding; nothing is copied then, which pays when little is computed.
    """
    responses, columns = mask.shape
    if mask.device.type != "cpu" or mask.numel() <= CHUNK:
        return [Part(slice(None), columns)]
    step = max(1, min(CHUNK, mask.numel() // 4) // columns)
    if not trim:
        return [Part(slice(start, start + step), columns) for start in range(0, responses, step)]
    found = []
    for rows in mask[:, ::SAMPLED].sum(-1).argsort(descending=True, stable=True).split(step):
        used = mask.index_select(0, rows).view(torch.uint8).amax(0).nonzero()
        found.append(Part(rows, int(used[-1]) + 1 if len(used) else 1))
    return found


def take(part: Part, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """This part of each tensor, [B, T] or [B]; None stays None."""
    if isinstance(part.rows, slice):
        return tuple(None if t is None else t[part.rows] for t in tensors)
    widths = (None if t is None else t if t.ndim == 1 else t[:, : part.width] for t in tensors)
    return tuple(None if t is None else t.index_select(0, part.rows) for t in widths)


def put(part: Part, values: Tensor, whole: Tensor | None, like: Tensor) -> Tensor:
    """`whole` (at first None: a tensor of the shape of `like`, 0 where no part is) with `values` as this part of it."""
    if values.shape == like.shape:
        return values
    if isinstance(part.rows, slice):
        whole = values.new_empty(like.shape) if whole is None else whole
        whole[part.rows] = values
    else:
        whole = values.new_zeros(like.shape) if whole is None else whole
        whole[:, : part.width].index_copy_(0, part.rows, values)
    return whole


def gather(done: Sequence[tuple[Part, Rows]]) -> Rows:
    """`merge` of the rows of every part, in the order of the batch."""
    rows = merge([found for _, found in done])
    if isinstance(done[0][0].rows, slice):
        return rows
    order = torch.cat([part.rows for part, _ in done]).argsort()
    return {name: value[order] for name, value in rows.items()}


def chunked(function: Callable[..., Rows], mask: Tensor, *tensors: Tensor | None, trim: bool = True) -> Rows:
    """`function(mask, *tensors)` on a few responses at a time: the batch is never copied whole."""
    return gather([(part, function(*take(part, mask, *tensors))) for part in parts(mask, trim=trim)])


def over(values: Tensor, present: Tensor) -> Tensor:
    """Mean over the responses that have tokens, along the last dimension; 0 when there is none."""
    return torch.where(present, values, 0.0).sum(-1) / present.sum().clamp(min=1)


def total(values: Tensor) -> Tensor:
    """Sum of each row, pairwise in the dtype of the values: that errs no more than their own rounding."""
    return values.sum(-1)


def squares(values: Tensor) -> Tensor:
    """Sum of the squares of each row, without a tensor of squares."""
    return torch.linalg.vecdot(values, values)


def count(flags: Tensor) -> Tensor:
    """How many of each row are True, in fp64."""
    return flags.count_nonzero(-1).double()


def beyond(compare: Callable[..., Tensor], values: Tensor, bound: float) -> Tensor:
    """How many of each row `compare` (torch.gt, torch.lt) with `bound`; in their dtype."""
    return total(compared(compare, values, bound))


def highest(values: Tensor) -> Tensor:
    """The largest value of each row; −∞ of rows without columns, 0 of integers."""
    if values.shape[-1]:
        return values.amax(-1)
    return values.new_full(values.shape[:-1], -torch.inf if values.is_floating_point() else 0)


def lowest(values: Tensor) -> Tensor:
    """The smallest value of each row; ∞ of rows without columns."""
    return -highest(-values) if not values.shape[-1] else values.amin(-1)


def extreme(values: Tensor, present: Tensor) -> Tensor:
    """The largest value over the responses that have tokens, along the last dimension; 0 when there is none."""
    return torch.where(present.any(), highest(torch.where(present, values, -torch.inf)), 0.0)
