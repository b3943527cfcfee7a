"""Records that an engine makes while it samples, and that later passes over the responses replay: experts and sampling masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.rollouts.routes import Routes


class Recorded(NamedTuple):
    """Records of how an engine sampled B responses, which a forward pass replays."""

    routes: Routes | None = None
    """Experts that a forward pass takes for each token; None if each pass chooses its own."""
    support: Tensor | None = None
    """Tokens over which a pass renormalises π, [B, T, ⌈V/8⌉] uint8 as `pack` makes it, 0 after the end; None: all tokens."""

    def of(self, rows: Any) -> Recorded:
        """The engine's records of the responses `rows`, which may be any index of the first dimension."""
        return self.map(lambda part: part[rows])

    def map(self, function: Callable[[Tensor], Tensor]) -> Recorded:
        """Apply `function` to each tensor of the records that is present, and return the results as records."""
        routes = None if self.routes is None else self.routes.map(function)
        return Recorded(routes, None if self.support is None else function(self.support))

    def groups(self) -> Tensor:
        """Group number of each response, [B] int64. Responses with equal experts and sampling masks share a number."""
        parts = [] if self.routes is None else [self.routes.groups()]
        if self.support is not None:
            parts.append(self.support.flatten(1).unique(dim=0, return_inverse=True)[1])
        return torch.stack(parts, 1).unique(dim=0, return_inverse=True)[1]


def pack(support: Tensor) -> Tensor:
    """Pack a mask of tokens, [..., V] bool, to bits [..., ⌈V/8⌉] uint8: token v is bit v % 8 of byte v // 8."""
    eights = F.pad(support, (0, -support.shape[-1] % 8)).unflatten(-1, (-1, 8)).to(torch.uint8)
    return (eights << _places(support)).sum(-1, dtype=torch.uint8)


def unpack(bits: Tensor, vocabulary: int) -> Tensor:
    """Unpack bits [..., ⌈V/8⌉] uint8 to a mask of tokens [..., V] bool: token v is bit v % 8 of byte v // 8."""
    return (bits[..., None] >> _places(bits) & 1).flatten(-2)[..., :vocabulary].bool()


def sizes(bits: Tensor) -> Tensor:
    """Number of tokens in each packed mask [..., ⌈V/8⌉], [...] int64, counted without unpacking the bits."""
    counts = [(bits >> place & 1).sum(-1, dtype=torch.int64) for place in range(8)]
    return torch.stack(counts).sum(0)


def _places(like: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=like.device)
