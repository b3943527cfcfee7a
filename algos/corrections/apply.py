"""The correction algebra: (weights, kept mask) from the mismatch log ratio. `spec.py` says what each setting means."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from algos.chunks import Part, parts, put, take
from algos.corrections.spec import Correction, Plugin, Reject, Weight
from algos.masks import only
from algos.ratios import LOG_RATIO_BOUND, Ratio, at_level, sizes
from algos.registry import CORRECTIONS


class Corrected(NamedTuple):
    """What a correction does to a batch, detached.

    weights: [B, T], multiplies the token loss (0 off the response). kept: [B, T] bool, the response mask after
    rejection. counted: [B, T] bool, the mask whose counts the reduction divides by.
    """

    weights: Tensor
    kept: Tensor
    counted: Tensor


class WeightSum(NamedTuple):
    """Sum and count of the weights at their own level, fp64 scalars; over micro-batches and ranks they add up."""

    total: Tensor
    count: Tensor

    def merge(self, other: WeightSum) -> WeightSum:
        """That of both parts together."""
        return WeightSum(self.total + other.total, self.count + other.count)

    def mean(self) -> Tensor:
        """The mean weight; 1 where no weight is left, so that dividing by it changes nothing."""
        return torch.where(self.total > 0, self.total / self.count.clamp(min=1e-300), 1.0)


@torch.no_grad()
def correct(
    log_ratio: Tensor,
    mask: Tensor,
    spec: Correction,
    *,
    advantages: Tensor | None = None,
    logp_rollout: Tensor | None = None,
    segments: Tensor | None = None,
    batch: WeightSum | None = None,
    observe: Callable[[Part, Ratio, Tensor, Tensor, Tensor], None] | None = None,
) -> Corrected:
    """Apply `spec` to l = log π − log μ ([B, T], nats, 0 off `mask`).

    w = action(exp l at its level), divided by its mean with normalize=batch;  kept = mask ∧ all filters

    advantages ([B, T]) are read by filters with when=negative_advantage, logp_rollout ([B, T], nats) by prob_diff,
    segments ([B, T] integers, see `ratios.at_level`) by level segment. `batch` is the merged `weight_sum` of the whole
    global batch for normalize=batch; without it, the tensors given are taken to be that batch. `observe` is called with
    each part, its ratio, bounded weights (at their own level; then 0 off the mask, [B, T]; neither normalised) and kept.
    Limits: l = 0 gives w = 1 and rejects nothing; upper → ∞ gives w = ρ; an empty `reject` keeps the mask; no two
    tokens of different responses affect each other except through `batch` and plug-ins. Raises ValueError on a missing
    input.
    """
    weights = kept = None
    alone = WeightSum(*log_ratio.new_zeros(2, dtype=torch.float64))
    plugged = _plugged(log_ratio, mask, spec)
    for part in parts(mask, trim=segments is None and observe is not None):
        ratio = Ratio(*take(part, log_ratio, mask, logp_rollout, segments))
        used = bounded_weights(raw_weights(ratio, spec.weight), spec.weight)
        masked, keep = used * ratio.present, _kept(ratio, *take(part, plugged, advantages), spec)
        weights, kept = put(part, masked, weights, mask), put(part, keep, kept, mask)
        if spec.normalize == "batch" and batch is None:
            alone = alone.merge(_sum(masked, ratio, spec.weight))
        if observe is not None:
            observe(part, ratio, used, masked, keep)
    if spec.normalize == "batch":
        weights.div_((batch or alone).mean())
    return Corrected(weights, kept, kept if spec.denominator == "kept" else mask)


@torch.no_grad()
def weight_sum(log_ratio: Tensor, mask: Tensor, spec: Correction, segments: Tensor | None = None) -> WeightSum:
    """What normalize=batch needs to know of one part of the batch: each token, response or segment counts once."""
    ratio = Ratio(log_ratio, mask, segments=segments)
    return _sum(bounded_weights(raw_weights(ratio, spec.weight), spec.weight) * ratio.present, ratio, spec.weight)


def raw_weights(ratio: Ratio, weight: Weight) -> Tensor:
    """ρ at the weight's level before its bounds, [B, T] or [B, 1]; 1 when there is no weight."""
    return ratio.l.new_ones(()) if weight.level is None else ratio.at_level(weight.level)


def bounded_weights(rho: Tensor, weight: Weight) -> Tensor:
    """truncate: min(ρ, upper); clip: clamp(ρ, lower, upper); mask: ρ·1{lower ≤ ρ ≤ upper}."""
    if weight.level is None:
        return rho
    if weight.action == "mask":
        return torch.where(within(rho, weight.lower, weight.upper), rho, 0.0)
    return rho.clamp(min=weight.lower, max=weight.upper)


def statistic(ratio: Ratio, filter_: Reject) -> Tensor:
    """What a filter compares with its bounds, at its level, [B, T] or [B, 1].

    `ratio` is compared as ρ, with ρ's own rounding, so that a ratio equal to a bound is kept at every level; at
    worst_token, where both its largest and its smallest value matter, it stays per token.
    """
    return ratio.once((filter_.statistic, filter_.level), lambda: _statistic(ratio, filter_))


def _statistic(ratio: Ratio, filter_: Reject) -> Tensor:
    if filter_.statistic == "ratio":
        return ratio.at_level("token" if filter_.level == "worst_token" else filter_.level)
    values = _per_token(ratio, filter_.statistic)
    if filter_.level == "worst_token" and filter_.statistic == "prob_diff":
        return values
    level = at_level(values, ratio.mask, filter_.level, ratio.segments)
    return 1 + level if filter_.statistic == "mult_error" else level


def within(values: Tensor, lower: float | None, upper: float | None) -> Tensor:
    """lower ≤ values ≤ upper, a missing bound being no bound."""
    keep = torch.ones_like(values, dtype=torch.bool)
    if lower is not None:
        keep &= values >= lower
    if upper is not None:
        keep &= values <= upper
    return keep


def passes(name: str, ratio: Ratio, filter_: Reject, advantages: Tensor | None) -> Tensor:
    """The tokens that one filter keeps, [B, T] or [B, 1] bool. Raises ValueError naming `name` on a missing input."""
    if filter_.statistic == "prob_diff" and ratio.logp_rollout is None:
        raise ValueError(f"reject.{name}.statistic=prob_diff needs logp_rollout")
    if filter_.when == "negative_advantage" and advantages is None:
        raise ValueError(f"reject.{name}.when=negative_advantage needs the advantages")
    keep = within(statistic(ratio, filter_), filter_.lower, filter_.upper)
    if filter_.level == "worst_token":
        keep = keep.all(-1, keepdim=True)  # padding passes: it holds the statistic of equal policies
    if filter_.when == "negative_advantage":
        keep = keep | (advantages >= 0)
    return keep


def _sum(weights: Tensor, ratio: Ratio, weight: Weight) -> WeightSum:
    """A token of a unit of n tokens counts 1/n, so that each unit counts once, whatever its length."""
    share = torch.where(ratio.mask, 1.0 / sizes(ratio.mask, weight.level, ratio.segments).double(), 0.0)
    return WeightSum((weights * share).sum(), share.sum())


def _plugged(log_ratio: Tensor, mask: Tensor, spec: Correction) -> Tensor:
    """The mask that the plug-ins leave: they see the batch at once, as their bounds may depend on it.

    Raises ValueError naming a plug-in that does not return [B, T] bool: [B] would spread over the tokens where B = T.
    """
    left = mask
    for name, filter_ in spec.reject.items():
        if isinstance(filter_, Plugin):
            keep = CORRECTIONS[filter_.function](log_ratio, left, **filter_.params)
            if not isinstance(keep, Tensor) or keep.shape != mask.shape or keep.dtype != torch.bool:
                found = f"{list(keep.shape)} {keep.dtype}" if isinstance(keep, Tensor) else type(keep).__name__
                raise ValueError(f"correction.reject.{name}: filter {filter_.function} returned {found}; it must return bool of "
                                 f"log_ratio's shape {list(mask.shape)}, for whole responses keep[:, None].expand_as(mask)")
            left = left & keep
    return left


def _kept(ratio: Ratio, kept: Tensor, advantages: Tensor | None, spec: Correction) -> Tensor:
    for name, filter_ in spec.reject.items():
        if isinstance(filter_, Reject):
            keep = passes(name, ratio, filter_, advantages)
            both = kept.view(torch.uint8) & keep.view(torch.uint8)  # 10 times faster on a CPU where `keep` is [B, 1]
            kept = both.view(torch.bool)
    return kept


def _per_token(ratio: Ratio, name: str) -> Tensor:
    """The statistic of each token, mult_error less 1: 0 for equal policies, and so off the mask."""
    if name == "k2":
        return ratio.l.square() / 2
    if name == "k3":
        return ratio.k3
    if name == "mult_error":
        return torch.expm1(ratio.l.abs().clamp(max=LOG_RATIO_BOUND))
    return only(ratio.logp_rollout.exp() * torch.expm1(ratio.l), ratio.mask)  # prob_diff = π − μ
