"""Diagnostics in two steps, so that a result does not depend on how the batch is split.

A `*_rows` function reduces each response to a few numbers, its row. `merge` concatenates the rows of micro-batches and ranks. A
`finish_*` function reduces the rows of the whole batch, so that a maximum or an effective sample size is that of the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Rows = dict[str, Tensor]
"""Name of a quantity -> a tensor of one number per response, [B], or one per response and bin, [B, bins]; fp64 once merged."""


def merge(parts: Sequence[Rows]) -> Rows:
    """Concatenate numbers per response (rows) of several micro-batches or ranks into those of one batch."""
    return {name: torch.cat([part[name] for part in parts]).double() for name in parts[0]}


def row_sum(values: Tensor) -> Tensor:
    """Sum of each row, in the dtype of `values`. Pairwise summation keeps the error within the rounding of the values."""
    return values.sum(-1)


def squares(values: Tensor) -> Tensor:
    """Sum of the squares of each row, computed without allocating the squares."""
    return torch.linalg.vecdot(values, values)


SUMS = ("off", "off_sq", "sum", "sum_sq")


def sums(values: Tensor, off: Tensor) -> Rows:
    """Sums over each row of `values` and of `off`, and of their squares. off: `values` less their value where π = μ."""
    return {"off": row_sum(off), "off_sq": squares(off), "sum": row_sum(values), "sum_sq": squares(values)}


class Moments(NamedTuple):
    """Mean and variance over tokens of one quantity, such as a ratio, or of several along the leading dimensions.

    row, row_off [..., B]: mean over the tokens of each response, and this mean less the quantity's value where π = μ. mean,
    variance [...]: over all tokens of the batch. off [...]: `mean` less the value where π = μ.
    """

    row: Tensor
    row_off: Tensor
    mean: Tensor
    off: Tensor
    variance: Tensor


def moments(rows: Rows, n: Tensor, centre: Tensor) -> Moments:
    """Mean and variance of a quantity over all tokens, from sums [..., B] over the n [B] tokens of each response.

    centre [..., 1]: the quantity's value where π = μ, already subtracted from the values that `off` and `off_sq` sum up.

    Near the centre, a sum of values would lose their spread to rounding. Near 0, where a weight may be 1e-9, a sum of values − 1
    would lose the values. For each response the sums that lose less are used. The variance is that within responses plus that of
    the responses' means, so that no two large numbers are subtracted.
    """
    tokens, size = n.sum(-1).clamp(min=1), n.clamp(min=1)
    near = rows["off"] / size > -0.5
    row = torch.where(near, centre + rows["off"] / size, rows["sum"] / size)
    row_off = torch.where(near, rows["off"] / size, row - centre)
    within = torch.where(near, rows["off_sq"] - size * row_off.square(), rows["sum_sq"] - size * row.square())
    off = (n * row_off).sum(-1) / tokens
    between = n * (row_off - off[..., None]).square()
    variance = (within.clamp(min=0) + torch.where(n > 0, between, 0.0)).sum(-1) / tokens
    mean = torch.where(off > -0.5, centre.squeeze(-1) + off, (n * row).sum(-1) / tokens)
    return Moments(row, row_off, mean, off, variance)


def count(flags: Tensor) -> Tensor:
    """Number of True values in each row of `flags`, in fp64."""
    return flags.sum(-1).double()


def highest(values: Tensor, mask: Tensor) -> Tensor:
    """The largest of `values` in each row where `mask` is True; −∞ for a row without such a value."""
    if not values.shape[-1]:
        return values.new_full(values.shape[:-1], -torch.inf)
    return torch.where(mask, values, -torch.inf).amax(-1)


def lowest(values: Tensor, mask: Tensor) -> Tensor:
    """The smallest of `values` in each row where `mask` is True; ∞ for a row without such a value."""
    return -highest(-values, mask)


def extreme(values: Tensor, present: Tensor) -> Tensor:
    """The largest of `values` [..., B] over the responses that have tokens, `present` [B]; 0 when none has."""
    return torch.where(present.any(), highest(values, present), 0.0)


def mean_present(values: Tensor, present: Tensor) -> Tensor:
    """Mean of `values` [..., B] over the responses that have tokens, `present` [B]; 0 when none has."""
    return torch.where(present, values, 0.0).sum(-1) / present.sum().clamp(min=1)


def share(part: Tensor, whole: Tensor) -> Tensor:
    """The quotient part/whole; 0 where the whole is 0."""
    return torch.where(whole > 0, part / whole.clamp(min=1e-300), 0.0)
