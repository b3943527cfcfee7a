"""Responses as lists, whose lengths differ, into tensors."""

from __future__ import annotations

import torch
from torch import Tensor


def padded(rows: list[list], length: int, value: float, dtype: torch.dtype, *, left: bool = False) -> Tensor:
    """[B, length]: the rows with `value` after their end, or before their start with `left`."""
    gaps = [[value] * (length - len(row)) for row in rows]
    return torch.tensor([gap + row if left else row + gap for row, gap in zip(rows, gaps, strict=True)], dtype=dtype)
