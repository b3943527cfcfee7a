"""The correction algebra: (weights, kept mask) from the mismatch log ratio. `spec.py` says what each setting means."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from algos.ratios import LOG_RATIO_BOUND, at_level, bounded_exp, sizes
from algos.registry import CORRECTIONS
from algos.spec import Correction, Plugin, Reject, Weight


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
) -> Corrected:
    """Apply `spec` to l = log π − log μ ([B, T], nats, 0 off `mask`).

    w = action(exp l at its level), divided by its mean with normalize=batch;  kept = mask ∧ all filters

    advantages ([B, T]) are read by filters with when=negative_advantage, logp_rollout ([B, T], nats) by prob_diff,
    segments ([B, T] integers, see `ratios.at_level`) by level segment. `batch` is the merged `weight_sum` of the whole
    global batch for normalize=batch; without it, the tensors given are taken to be that batch.
    Limits: l = 0 gives w = 1 and rejects nothing; upper → ∞ gives w = ρ; an empty `reject` keeps the mask; no two
    tokens of different responses affect each other except through `batch` and plug-ins. Raises ValueError on a missing
    input.
    """
    weights = raw_weights(log_ratio, mask, spec.weight, segments)
    weights = bounded_weights(weights, spec.weight).expand_as(log_ratio)
    if spec.normalize == "batch":
        batch = batch or _sum(weights, mask, spec.weight, segments)
        weights = (weights / batch.mean()).to(log_ratio.dtype)
    kept = mask
    for name, filter_ in spec.reject.items():
        if isinstance(filter_, Plugin):
            keep = CORRECTIONS[filter_.function](log_ratio, mask, **filter_.params)
        else:
            keep = _keep(name, log_ratio, mask, filter_, advantages, logp_rollout, segments)
        kept = kept & keep
    return Corrected(torch.where(mask, weights, 0.0), kept, kept if spec.denominator == "kept" else mask)


@torch.no_grad()
def weight_sum(log_ratio: Tensor, mask: Tensor, spec: Correction, segments: Tensor | None = None) -> WeightSum:
    """What normalize=batch needs to know of one part of the batch: each token, response or segment counts once."""
    weights = bounded_weights(raw_weights(log_ratio, mask, spec.weight, segments), spec.weight)
    return _sum(weights.expand_as(log_ratio), mask, spec.weight, segments)


def raw_weights(log_ratio: Tensor, mask: Tensor, weight: Weight, segments: Tensor | None = None) -> Tensor:
    """ρ at the weight's level before its bounds, [B, T] or [B, 1]; 1 when there is no weight."""
    if weight.level is None:
        return torch.ones_like(log_ratio)
    return bounded_exp(at_level(log_ratio, mask, weight.level, segments))


def bounded_weights(rho: Tensor, weight: Weight) -> Tensor:
    """truncate: min(ρ, upper); clip: clamp(ρ, lower, upper); mask: ρ·1{lower ≤ ρ ≤ upper}."""
    if weight.level is None:
        return rho
    if weight.action == "mask":
        return torch.where(within(rho, weight.lower, weight.upper), rho, 0.0)
    return rho.clamp(min=weight.lower, max=weight.upper)


def statistic(
    log_ratio: Tensor,
    mask: Tensor,
    filter_: Reject,
    logp_rollout: Tensor | None = None,
    segments: Tensor | None = None,
) -> Tensor:
    """What a filter compares with its bounds, at its level, [B, T] or [B, 1].

    `ratio` is compared as ρ, with ρ's own rounding, so that a ratio equal to a bound is kept at every level; at
    worst_token, where both its largest and its smallest value matter, it stays per token.
    """
    if filter_.statistic == "ratio":
        level = "token" if filter_.level == "worst_token" else filter_.level
        return bounded_exp(at_level(log_ratio, mask, level, segments))
    values = torch.where(mask, _per_token(log_ratio, filter_.statistic, logp_rollout), 0.0)
    if filter_.level == "worst_token" and filter_.statistic == "prob_diff":
        return values
    return at_level(values, mask, filter_.level, segments)


def within(values: Tensor, lower: float | None, upper: float | None) -> Tensor:
    """lower ≤ values ≤ upper, a missing bound being no bound."""
    keep = torch.ones_like(values, dtype=torch.bool)
    if lower is not None:
        keep &= values >= lower
    if upper is not None:
        keep &= values <= upper
    return keep


def _sum(weights: Tensor, mask: Tensor, weight: Weight, segments: Tensor | None) -> WeightSum:
    """A token of a unit of n tokens counts 1/n, so that each unit counts once, whatever its length."""
    share = torch.where(mask, 1.0 / sizes(mask, weight.level, segments).double(), 0.0)
    return WeightSum((weights * share).sum(), share.sum())


def _keep(
    name: str,
    log_ratio: Tensor,
    mask: Tensor,
    filter_: Reject,
    advantages: Tensor | None,
    logp_rollout: Tensor | None,
    segments: Tensor | None,
) -> Tensor:
    if filter_.statistic == "prob_diff" and logp_rollout is None:
        raise ValueError(f"reject.{name}.statistic=prob_diff needs logp_rollout")
    if filter_.when == "negative_advantage" and advantages is None:
        raise ValueError(f"reject.{name}.when=negative_advantage needs the advantages")
    keep = within(statistic(log_ratio, mask, filter_, logp_rollout, segments), filter_.lower, filter_.upper)
    if filter_.level == "worst_token":
        keep = keep.all(-1, keepdim=True)  # padding passes: it holds the statistic of equal policies
    if filter_.when == "negative_advantage":
        keep = keep | (advantages >= 0)
    return keep


def _per_token(log_ratio: Tensor, name: str, logp_rollout: Tensor | None) -> Tensor:
    if name == "k2":
        return log_ratio.square() / 2
    if name == "k3":
        return torch.expm1(log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)) - log_ratio
    if name == "mult_error":
        return bounded_exp(log_ratio.abs())
    return logp_rollout.exp() * torch.expm1(log_ratio)  # prob_diff = π − μ
