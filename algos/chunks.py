"""A few responses at a time, of like length and without their padding."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from algos.batch import Batch
from algos.diagnostics.rows import Rows, merge

CHUNK = 1 << 17
"""Tokens that a CPU works on at once, or a quarter of a smaller batch. Most intermediate tensors then stay in its caches, and
all of them together are few beside the batch."""

SAMPLED = 16
"""Lengths are compared by every so many columns of the mask: enough to put responses of like length together."""


def chunks(batch: Batch) -> Iterator[tuple[Tensor, Batch]]:
    """(the numbers of some responses, their batch cut to their longest); the whole batch at once but on a CPU."""
    mask = batch.mask
    responses, columns = mask.shape
    everything = torch.arange(responses, device=mask.device)
    if mask.device.type != "cpu" or mask.numel() <= CHUNK:
        yield everything, batch
        return
    step = max(1, min(CHUNK, mask.numel() // 4) // columns)
    for rows in mask[:, ::SAMPLED].sum(-1).argsort(descending=True, stable=True).split(step):
        some = batch.rows(rows)
        used = some.mask.any(0).nonzero()
        width = columns if batch.segments is not None else int(used[-1]) + 1 if len(used) else 1  # an id may be any below T
        yield rows, Batch._make(t if t is None or t.ndim == 1 else t[:, :width] for t in some)


def chunked(function: Callable[[Batch], Rows], batch: Batch) -> Rows:
    """`function` on a few responses at a time, with the rows of all in the order of the batch."""
    numbers, rows = zip(*((numbers, function(part)) for numbers, part in chunks(batch)), strict=True)
    order = torch.cat(numbers).argsort()
    return {name: value[order] for name, value in merge(rows).items()}
