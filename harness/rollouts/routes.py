"""Routes: the experts of a mixture that computed each token. An engine records them in sampling; later passes may replay them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Routes(NamedTuple):
    """Experts that computed L token positions (places) in each of B rows, which hold a prompt and its response.

    To sample T tokens after a prompt of P, an engine computes L = P + T − 1 places, and place P − 1 + t predicts token t. The
    last token is never computed and has no route.

    ids [B, L, layers, k], uint8 or int16: the experts in the order of their slots. Where a place was not computed, as in
    padding and after the end of a row, every slot holds the largest number of the dtype (`no_route`). weights [B, L, layers,
    k] fp32: factors on the outputs of these experts. None if nothing reads them. margin [B, L, layers] fp32: p_k − p_(k+1),
    the difference in probability between the last picked expert and the next.
    """

    ids: Tensor
    weights: Tensor | None = None
    margin: Tensor | None = None

    @classmethod
    def unrouted(cls, rows: int, places: int, layers: int, top_k: int, experts: int, device: torch.device) -> Routes:
        """Routes (chosen experts) [rows, places, layers, top_k] of a batch of which no token has been computed yet.

        places: number of token positions. experts: number per layer.
        """
        dtype = id_dtype(experts)
        ids = torch.full((rows, places, layers, top_k), no_route(dtype), dtype=dtype, device=device)
        return cls(ids, torch.zeros(ids.shape, device=device), torch.zeros(ids.shape[:-1], device=device))

    @classmethod
    def stack(cls, layers: list[Routes], rows: int) -> Routes:
        """Stack the experts chosen in each layer, [B·L, ...] for B rows of L tokens, to [B, L, layers, ...]. rows: B."""
        return cls(*(torch.stack(parts, 1).unflatten(0, (rows, -1)) for parts in zip(*layers, strict=True)))

    @classmethod
    def cat(cls, parts: list[Routes]) -> Routes:
        """Concatenate routes (the experts chosen for each token) of several batches along their rows."""
        return cls(*(torch.cat(columns) for columns in zip(*parts, strict=True)))

    def layer(self, number: int) -> Routes:
        """Experts chosen in layer `number`, with rows and token positions flattened to [B·L, ...]."""
        return self.map(lambda part: part[:, :, number].flatten(0, 1))

    def of(self, rows: Any, places: Any = slice(None)) -> Routes:
        """Experts chosen for rows `rows` at token positions `places`. Both may be any index of their dimension."""
        return self.map(lambda part: part[rows][:, places])

    def map(self, function: Callable[[Tensor], Tensor]) -> Routes:
        """Apply `function` to the expert ids, and to weights and margins if present, and return the results as routes."""
        weights, margin = (None if part is None else function(part) for part in self[1:])
        return Routes(function(self.ids), weights, margin)

    def put(self, rows: Any, places: Any, other: Routes) -> None:
        """Copy the chosen experts `other` to rows `rows` and token positions `places`. Skip tensors that one side lacks."""
        for mine, theirs in zip(self, other, strict=True):
            if mine is not None and theirs is not None:
                mine[rows, places] = theirs.to(mine.dtype)

    def groups(self) -> Tensor:
        """Group number of each response, [B] int64. Those whose tokens took equal experts with equal weights share a number."""
        parts = [part.flatten(1).double() for part in self[:2] if part is not None]
        return torch.cat(parts, 1).unique(dim=0, return_inverse=True)[1]


def id_dtype(experts: int) -> torch.dtype:
    """Smallest integer dtype that holds the number of each of `experts` experts, and `no_route`."""
    return torch.uint8 if experts < torch.iinfo(torch.uint8).max else torch.int16


def no_route(dtype: torch.dtype) -> int:
    """Number that stands for an expert where no token was computed: the largest number of `dtype`."""
    return torch.iinfo(dtype).max


def has_route(ids: Tensor) -> Tensor:
    """Whether each token position was computed and so has a route, bool [...]. ids: expert ids [..., k]."""
    return ids[..., 0] != no_route(ids.dtype)
