"""Conversion of lists of different lengths to one padded tensor."""

from __future__ import annotations

import torch
from torch import Tensor


def padded(rows: list[list], length: int, value: float, dtype: torch.dtype, *, left: bool = False) -> Tensor:
    """Tensor [B, length] of lists of different lengths, filled with `value` after each list, or before it if `left`."""
    gaps = [[value] * (length - len(row)) for row in rows]
    return torch.tensor([gap + row if left else row + gap for row, gap in zip(rows, gaps, strict=True)], dtype=dtype)
