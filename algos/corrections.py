"""The correction algebra: (weights, kept mask) from the mismatch log ratio. `spec.py` says what each setting means."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from algos.ratios import at_level, bounded_exp
from algos.spec import Correction, Reject, Weight


class Corrected(NamedTuple):
    """What a correction does to a batch, detached.

    weights: [B, T], multiplies the token loss (0 off the response). kept: [B, T] bool, the response mask after
    rejection. counted: [B, T] bool, the mask whose counts the reduction divides by.
    """

    weights: Tensor
    kept: Tensor
    counted: Tensor


@torch.no_grad()
def correct(
    log_ratio: Tensor,
    mask: Tensor,
    spec: Correction,
    *,
    advantages: Tensor | None = None,
    logp_rollout: Tensor | None = None,
) -> Corrected:
    """Apply `spec` to l = log π − log μ ([B, T], nats, 0 off `mask`).

    advantages ([B, T]) are read by filters with when=negative_advantage, logp_rollout ([B, T], nats) by prob_diff.
    Limits: l = 0 gives w = 1 and rejects nothing; upper → ∞ gives w = ρ; an empty `reject` keeps the mask.
    """
    weights = _weight(log_ratio, mask, spec.weight)
    if spec.normalize == "batch":
        weights = weights / _mean_weight(weights, mask, spec.weight)
    kept = mask
    for filter_ in spec.reject.values():
        kept = kept & _keep(log_ratio, mask, filter_, advantages, logp_rollout)
    return Corrected(torch.where(mask, weights, 0.0), kept, kept if spec.denominator == "kept" else mask)


def _weight(log_ratio: Tensor, mask: Tensor, weight: Weight) -> Tensor:
    if weight.level is None:
        return torch.ones_like(log_ratio)
    rho = bounded_exp(at_level(log_ratio, mask, weight.level))
    if weight.action == "mask":
        rho = torch.where(_within(rho, weight.lower, weight.upper), rho, 0.0)
    else:
        rho = rho.clamp(min=weight.lower, max=weight.upper)
    return rho.expand_as(log_ratio)


def _mean_weight(weights: Tensor, mask: Tensor, weight: Weight) -> Tensor:
    """The batch mean at the weight's own level: over tokens, or over responses that have a token."""
    if weight.level == "token":
        mean = torch.where(mask, weights, 0.0).sum() / mask.sum().clamp(min=1)
    else:
        present = mask.any(-1)
        mean = torch.where(present, weights[:, 0], 0.0).sum() / present.sum().clamp(min=1)
    return torch.where(mean > 0, mean, 1.0)


def _keep(
    log_ratio: Tensor, mask: Tensor, filter_: Reject, advantages: Tensor | None, logp_rollout: Tensor | None
) -> Tensor:
    if filter_.statistic == "ratio":
        keep = _keep_ratio(log_ratio, mask, filter_)
    else:
        values = torch.where(mask, _statistic(log_ratio, filter_.statistic, logp_rollout), 0.0)
        if filter_.level == "worst_token":
            keep = (_within(values, filter_.lower, filter_.upper) | ~mask).all(-1, keepdim=True)
        else:
            keep = _within(at_level(values, mask, filter_.level), filter_.lower, filter_.upper)
    if filter_.when == "negative_advantage":
        if advantages is None:
            raise ValueError("when=negative_advantage needs the advantages")
        keep = keep | (advantages >= 0)
    return keep.expand_as(mask)


def _keep_ratio(log_ratio: Tensor, mask: Tensor, filter_: Reject) -> Tensor:
    """Compared as ρ, with ρ's own rounding, so that a ratio equal to a bound is kept at every level."""
    if filter_.level == "worst_token":
        return (_within(bounded_exp(log_ratio), filter_.lower, filter_.upper) | ~mask).all(-1, keepdim=True)
    return _within(bounded_exp(at_level(log_ratio, mask, filter_.level)), filter_.lower, filter_.upper)


def _statistic(log_ratio: Tensor, name: str, logp_rollout: Tensor | None) -> Tensor:
    if name == "k2":
        return log_ratio.square() / 2
    if name == "k3":
        return bounded_exp(log_ratio) - 1 - log_ratio
    if logp_rollout is None:
        raise ValueError("statistic=prob_diff needs logp_rollout")
    return logp_rollout.exp() * torch.expm1(log_ratio)  # π − μ


def _within(values: Tensor, lower: float | None, upper: float | None) -> Tensor:
    keep = torch.ones_like(values, dtype=torch.bool)
    if lower is not None:
        keep &= values >= lower
    if upper is not None:
        keep &= values <= upper
    return keep
