"""Diagnostics in two steps, so that a number does not depend on how the batch is split.

A `*_rows` function reduces each response to a few numbers. `merge` concatenates the rows of micro-batches and
ranks. A `finish_*` function reduces the rows of the whole batch: a maximum is then a maximum, and an ESS that of the
global batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Rows = dict[str, Tensor]
"""Name -> one number per response, [B], or one per bin, [B, bins]; fp64 once merged."""


def merge(parts: Sequence[Rows]) -> Rows:
    """The rows of several micro-batches or ranks as those of one batch."""
    return {name: torch.cat([part[name] for part in parts]).double() for name in parts[0]}


def row_sum(values: Tensor) -> Tensor:
    """Sum of each row, pairwise in the dtype of the values: the error is no larger than their own rounding."""
    return values.sum(-1)


def squares(values: Tensor) -> Tensor:
    """Sum of the squares of each row, without a tensor of squares."""
    return torch.linalg.vecdot(values, values)


def count(flags: Tensor) -> Tensor:
    """How many of each row are True, in fp64."""
    return flags.sum(-1).double()


def highest(values: Tensor, mask: Tensor) -> Tensor:
    """The largest value of each row over `mask`; −∞ without any."""
    if not values.shape[-1]:
        return values.new_full(values.shape[:-1], -torch.inf)
    return torch.where(mask, values, -torch.inf).amax(-1)


def lowest(values: Tensor, mask: Tensor) -> Tensor:
    """The smallest value of each row over `mask`; ∞ without any."""
    return -highest(-values, mask)


def extreme(values: Tensor, present: Tensor) -> Tensor:
    """The largest value over the responses that have tokens, along the last dimension; 0 when there is none."""
    return torch.where(present.any(), highest(values, present), 0.0)


def mean_present(values: Tensor, present: Tensor) -> Tensor:
    """Mean over the responses that have tokens, along the last dimension; 0 when there is none."""
    return torch.where(present, values, 0.0).sum(-1) / present.sum().clamp(min=1)


def share(part: Tensor, whole: Tensor) -> Tensor:
    """part/whole, 0 where the whole is 0."""
    return torch.where(whole > 0, part / whole.clamp(min=1e-300), 0.0)
