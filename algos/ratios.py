"""Log ratios of two policies at the levels where corrections and losses use them."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import hardtanh

from algos.chunks import highest, lowest, squares, total
from algos.masks import bits, only, outside

LOG_RATIO_BOUND = 20.0
"""|log ρ| is clamped here before exp: e²⁰ ≈ 4.9e8 keeps ρ, ρ² and their sums finite in fp32. The share is a metric."""

ROWS = 16
"""Responses masked at once."""

LEVELS = ("token", "sequence", "geometric", "segment", "segment_geometric", "worst_token")


def log_ratio(logp: Tensor, logp_base: Tensor, mask: Tensor) -> Tensor:
    """l = log π − log μ in nats on response tokens, 0 elsewhere; [B, T] in the wider of the two dtypes, at least fp32.

    Masked, not multiplied, so padding may hold anything, NaN included.
    """
    assert logp.shape == logp_base.shape == mask.shape and mask.dtype == torch.bool and mask.ndim == 2
    dtype = torch.promote_types(torch.promote_types(logp.dtype, logp_base.dtype), torch.float32)
    l = logp.to(dtype) - logp_base.to(dtype)
    if l.requires_grad or l.device.type != "cpu":
        return only(l, mask)
    for some, inside in zip(l.split(ROWS), mask.split(ROWS), strict=True):  # so that no second tensor of the batch is made
        inside = bits(inside, dtype)
        some.view(inside.dtype).bitwise_and_(inside)
    return l


class Ratio:
    """The mismatch ratio of some responses: l = log π − log μ [B, T], 0 off the mask, and what is made of it, once each.

    logp_rollout [B, T] is read by `prob_diff` only, segments [B, T] by the levels of segments.
    """

    def __init__(self, l: Tensor, mask: Tensor, logp_rollout: Tensor | None = None, segments: Tensor | None = None):
        self.l, self.mask, self.logp_rollout, self.segments = l, mask, logp_rollout, segments
        self._made: dict[Hashable, Tensor] = {}

    def once(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """What `make` returned when `key` was asked for first."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def at_level(self, level: str) -> Tensor:
        """ρ at a level, [B, T] or [B, 1], its logarithm bounded."""
        return self.once(level, lambda: bounded_exp(at_level(self.l, self.mask, level, self.segments)))

    @cached_property
    def excess(self) -> Tensor:
        """ρ − 1, exact where ρ ≈ 1, without the bound on l: only so far that Σρ² stays finite, beyond 35 nats in fp32."""
        most = (math.log(torch.finfo(self.l.dtype).max) - math.log(self.l.shape[1] + 1)) / 2 - 1  # less 1 for rounding
        return self.l.clamp(-most, most).expm1_()

    @cached_property
    def ends(self) -> tuple[Tensor, Tensor]:
        """The smallest and the largest l of each response's tokens, [B]; ∞ and −∞ without any."""
        return lowest(self.l - self.outside), highest(self.l + self.outside)

    @cached_property
    def excess_moments(self) -> tuple[Tensor, Tensor]:
        """Σ(ρ − 1) and Σ(ρ − 1)² of each response, [B]."""
        return total(self.excess), squares(self.excess)

    @cached_property
    def k3(self) -> Tensor:
        """ρ − 1 − l ≥ 0 with l bounded in ρ; expm1 is monotone, so that it may be clamped in its stead."""
        return self.excess.clamp(math.expm1(-LOG_RATIO_BOUND), math.expm1(LOG_RATIO_BOUND)).sub_(self.l)

    @cached_property
    def present(self) -> Tensor:
        """The mask as numbers of l's dtype."""
        return self.mask.view(torch.uint8).to(self.l.dtype)

    @cached_property
    def n(self) -> Tensor:
        """Tokens of each response, [B]."""
        return total(self.present)

    @cached_property
    def outside(self) -> Tensor:
        """−∞ off the mask, 0 on it: added to values before a maximum."""
        return outside(self.mask, self.l.dtype)


def at_level(values: Tensor, mask: Tensor, level: str, segments: Tensor | None = None) -> Tensor:
    """Per-token values (0 off the mask) at a level.

    token: as they are, [B, T]. sequence: Σ_t, [B, 1]. geometric: mean_t, [B, 1]. worst_token: max_t, [B, 1].
    segment, segment_geometric: Σ and mean over the tokens of the response with the same id in `segments`, [B, T], 0 off
    the mask.
    `segments`: [B, T] integers 0 ≤ id < T, a turn's number within its response; read on the mask only.
    A response without tokens gives 0. Raises ValueError on an unknown level or missing segments.
    """
    if level == "token":
        return values
    if level == "sequence":
        return values.sum(-1, keepdim=True)
    if level == "geometric":
        return values.sum(-1, keepdim=True) / sizes(mask, level)
    if level in ("segment", "segment_geometric"):
        total = _segment_sum(values, mask, segments)
        return total if level == "segment" else total / sizes(mask, level, segments)
    if level == "worst_token":
        lowest = torch.finfo(values.dtype).min
        worst = torch.where(mask, values, lowest).amax(-1, keepdim=True)
        return torch.where(mask.any(-1, keepdim=True), worst, 0.0)
    raise ValueError(f"level={level}: accepted are {', '.join(LEVELS)}")


def sizes(mask: Tensor, level: str, segments: Tensor | None = None) -> Tensor:
    """How many tokens share a value at `level`: 1, the response's [B, 1], or the segment's [B, T]; at least 1."""
    if level == "token":
        return mask.new_ones((1, 1), dtype=torch.long)
    if level in ("segment", "segment_geometric"):
        return _segment_sum(mask.long(), mask, segments).clamp(min=1)
    return mask.count_nonzero(-1)[:, None].clamp(min=1)


def bounded_exp(log_values: Tensor) -> Tensor:
    """exp with its argument clamped to ±LOG_RATIO_BOUND; the gradient is 0 where it was clamped."""
    return hardtanh(log_values, -LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp_()  # a clamp whose gradient is one kernel


def _segment_sum(values: Tensor, mask: Tensor, segments: Tensor | None) -> Tensor:
    if segments is None:
        raise ValueError("level=segment needs segments, the number of the turn of each token")
    assert segments.shape == mask.shape and not segments.is_floating_point(), (segments.shape, segments.dtype)
    ids = torch.where(mask, segments.long(), 0)
    return torch.where(mask, torch.zeros_like(values).scatter_add(-1, ids, values).gather(-1, ids), 0)
