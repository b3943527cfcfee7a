"""Equal rows, of which a forward computes one."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.rollouts.recorded import Recorded

Index = Tensor | slice


def distinct(prompts: Tensor, tokens: Tensor, replay: Recorded | None = None) -> tuple[Index, Index]:
    """(one of each group of equal rows [U], the place of each row's equal among those [B]).

    Rows are equal where prompt, response and what is to be replayed are. Then `f(x[first])[place]` is `f(x)`, and autograd adds
    the gradients of equal rows up. Both are the slice of everything where no two rows are equal: indexing by it copies nothing.
    """
    values, place = torch.cat([prompts, tokens], 1).unique(dim=0, return_inverse=True)
    if len(values) < len(tokens) and replay is not None:
        values, place = torch.stack([place, replay.groups()], 1).unique(dim=0, return_inverse=True)
    if len(values) == len(tokens):
        return slice(None), slice(None)
    first = torch.empty(len(values), dtype=torch.int64, device=place.device)
    first[place] = torch.arange(len(place), device=place.device)
    return first, place
