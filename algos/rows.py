"""Diagnostics in two steps, so that a number does not depend on how the batch is split.

A `*_rows` function reduces each response to a few fp64 numbers; rows of micro-batches and ranks are concatenated; a
`finish_*` function reduces the rows of the whole batch: a maximum is then a maximum, and an ESS that of the global
batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Rows = dict[str, Tensor]
"""Name -> one number per response, [B], or one per bin, [B, bins]; fp64 once merged."""


CHUNK = 1 << 17
"""Elements that a CPU works on at once: the intermediate tensors of one chunk then stay in its cache."""


def merge(parts: Sequence[Rows]) -> Rows:
    """The rows of several micro-batches or ranks as those of one batch."""
    return {name: torch.cat([part[name] for part in parts]).double() for name in parts[0]}


def parts(tensor: Tensor) -> list[slice]:
    """A few responses at a time, so that intermediate tensors stay in a CPU's cache; other devices take all at once."""
    rows, columns = tensor.shape
    step = max(1, CHUNK // max(1, columns)) if tensor.device.type == "cpu" else max(1, rows)
    return [slice(start, start + step) for start in range(0, max(1, rows), step)]


def take(part: slice, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """These rows of each tensor; None stays None."""
    return tuple(None if tensor is None else tensor[part] for tensor in tensors)


def chunked(function: Callable[..., Rows], *tensors: Tensor | None) -> Rows:
    """`function` on a few responses at a time: the batch is never copied whole."""
    return merge([function(*take(part, *tensors)) for part in parts(tensors[0])])


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
    """How many of each row `compare` (torch.gt, torch.lt) with `bound`; by numbers, which a CPU compares faster than bools."""
    return total(compare(values, bound, out=torch.empty_like(values)))


def highest(values: Tensor) -> Tensor:
    """The largest value of each row; −∞ of rows without columns."""
    return values.amax(-1) if values.shape[-1] else values.new_full(values.shape[:-1], -torch.inf)


def lowest(values: Tensor) -> Tensor:
    """The smallest value of each row; ∞ of rows without columns."""
    return -highest(-values) if not values.shape[-1] else values.amin(-1)


def extreme(values: Tensor, present: Tensor) -> Tensor:
    """The largest value over the responses that have tokens, along the last dimension; 0 when there is none."""
    return torch.where(present.any(), highest(torch.where(present, values, -torch.inf)), 0.0)
