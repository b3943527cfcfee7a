"""Finds equal rows of a batch, so that a forward pass computes each only once."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.rollouts.recorded import Recorded

Index = Tensor | slice


def distinct(prompts: Tensor, tokens: Tensor, replay: Recorded | None = None) -> tuple[Index, Index]:
    """Return (first, place): the index of one row per group of equal rows [U], and the group of each row [B].

    `f(x[first])[place]` is `f(x)`, and autograd adds up the gradients of equal rows. Rows are equal in prompt, response and
    records. If no two rows are equal, both indices are the full slice, which copies nothing.
    """
    values, place = torch.cat([prompts, tokens], 1).unique(dim=0, return_inverse=True)
    if len(values) < len(tokens) and replay is not None:
        values, place = torch.stack([place, replay.groups()], 1).unique(dim=0, return_inverse=True)
    if len(values) == len(tokens):
        return slice(None), slice(None)
    first = torch.empty(len(values), dtype=torch.int64, device=place.device)
    first[place] = torch.arange(len(place), device=place.device)
    return first, place
