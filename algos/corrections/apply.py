"""Applies a correction (`algos.corrections.spec`) to a batch: token weights and a mask of kept tokens from the mismatch ratio."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from algos.batch import Batch
from algos.corrections.spec import Correction, Plugin, Reject, Weight
from algos.parameters import check
from algos.ratios import LOG_RATIO_BOUND, Ratio, at_level, binary_kl, sizes
from algos.registry import CORRECTIONS

LEAST_PROBABILITY = 1e-6
"""Lower bound of p and 1 − p for a probability p in a binary KL, so that logarithms are finite; prime-rl's value for KPop."""


class Corrected(NamedTuple):
    """The effect of a correction on a batch; no tensor carries a gradient.

    weights: [B, T], factors of the token loss, 0 off the response. kept: [B, T] bool, the response tokens that were not rejected.
    counted: [B, T] bool, the response tokens that reductions count. A loss takes its means, products and selections over these.
    """

    weights: Tensor
    kept: Tensor
    counted: Tensor

    def rows(self, index: Tensor | slice) -> Corrected:
        """Return the correction of the responses at `index`, a tensor of response numbers or a slice of them."""
        return Corrected(*(part[index] for part in self))


def correct(batch: Batch, spec: Correction, policy: Tensor | None = None) -> Corrected:
    """Compute the token weights w and the kept tokens of a whole batch from its mismatch ratio ρ = π/μ, as `spec` says.

    w = action(ρ at the weight's level), divided by its mean with normalize=batch;  kept = mask ∧ all filters

    policy: log π [B, T] in nats. None is π_old, the batch's `logp_old`; a spec of ratio=current is meant for log π_θ.
    Filters with when=negative_advantage read the advantages, the segment levels read `segments`, and level=group reads the
    prompts. Responses affect each other only through normalize=batch, level=group and plug-ins.
    Limits: ρ = 1 rejects nothing and gives w = 1, except with level=group; upper → ∞ gives w = ρ; an empty `reject` keeps the
    mask. Raises ValueError on a missing input.
    """
    return correct_ratio(Ratio(batch, policy), spec)


@torch.no_grad()
def correct_ratio(ratio: Ratio, spec: Correction) -> Corrected:
    """Apply the correction `spec` to a batch's `Ratio`, whose cached results serve later diagnostics of the same ratio."""
    weights = token_weights(ratio, spec.weight)
    kept = kept_tokens(ratio, spec)
    if spec.normalize == "batch" and spec.weight.level is not None:  # `Correction` refuses normalize=batch with apply=false
        weights = weights / mean_weight(weights, ratio.batch, spec.weight.level)
    return Corrected(weights, kept, kept if spec.denominator == "kept" else ratio.mask)


def raw_weights(ratio: Ratio, weight: Weight) -> Tensor:
    """The unbounded weight: ρ = π/μ per token [B, T] or response [B, 1], as `weight.level` says; the scalar 1 if that is None."""
    return ratio.l.new_ones(()) if weight.level is None else ratio.at_level(weight.level)


def bounded_weights(rho: Tensor, weight: Weight) -> Tensor:
    """Bound the ratio ρ by the weight's action: min(ρ, upper), clamp(ρ, lower, upper), or with mask ρ·1{lower ≤ ρ ≤ upper}."""
    if weight.level is None:
        return rho
    if weight.action == "mask":
        return torch.where(within(rho, weight.lower, weight.upper), rho, 0.0)
    return rho.clamp(min=weight.lower, max=weight.upper)


def token_weights(ratio: Ratio, weight: Weight) -> Tensor:
    """Each token's bounded weight [B, T] before normalize=batch divides it by the mean; 1 with apply=false; 0 off the mask."""
    weights = bounded_weights(raw_weights(ratio, weight), weight) if weight.apply else ratio.l.new_ones(())
    return torch.where(ratio.mask, weights, 0.0)


def mean_weight(weights: Tensor, batch: Batch, level: str) -> Tensor:
    """The mean of `weights` [B, T] over tokens, responses or segments (turns), whichever `level` concerns; an fp64 scalar.

    Each token of a response or segment of n tokens counts 1/n, so that each response or segment counts once, whatever its length.
    The mean is 1 when all weights are 0, so that dividing by it changes nothing.
    """
    share = torch.where(batch.mask, 1.0 / sizes(batch.mask, level, batch.segments).double(), 0.0)
    total = (weights * share).sum()
    return torch.where(total > 0, total / share.sum().clamp(min=1e-300), 1.0)


def kept_tokens(ratio: Ratio, spec: Correction) -> Tensor:
    """The tokens of a batch that every filter of the correction `spec` keeps, [B, T] bool. All filters see the original mask."""
    kept = ratio.mask
    for name, filter_ in spec.reject.items():
        kept = kept & (passes(name, ratio, filter_) if isinstance(filter_, Reject) else plugged(name, ratio, filter_))
    return kept


def passes(name: str, ratio: Ratio, filter_: Reject) -> Tensor:
    """Whether the filter `name` keeps each token [B, T] or response [B, 1], on the mask. Raises ValueError on missing input."""
    keep = within(statistic(ratio, filter_), filter_.lower, filter_.upper)
    if filter_.level == "worst_token":
        keep = keep.all(-1, keepdim=True)  # padding passes: it holds the statistic of equal policies
    if filter_.level == "suffix":
        failed = (~keep).long()
        keep = failed.cumsum(-1) == failed  # none before it
    if filter_.when == "all":
        return keep
    if ratio.batch.advantages is None:
        raise ValueError(f"reject.{name}.when=negative_advantage needs the advantages")
    return keep | (ratio.batch.advantages >= 0)


def statistic(ratio: Ratio, filter_: Reject) -> Tensor:
    """The values that a filter compares with its bounds: one per token [B, T], or one per response [B, 1].

    statistic=ratio gives ρ = π/μ itself, so that a ratio equal to a bound is kept at every level. `spec.Reject` defines the
    other statistics, such as k3 and prob_diff. level=worst_token gives ratio and prob_diff per token, and the maximum over the
    response of any other statistic. level=suffix gives every statistic per token.
    """
    return ratio.cached((filter_.statistic, filter_.level), lambda: _statistic(ratio, filter_))


def within(values: Tensor, lower: float | None, upper: float | None) -> Tensor:
    """Whether lower ≤ value ≤ upper, for each value; a bound of None is not tested."""
    keep = torch.ones_like(values, dtype=torch.bool)
    if lower is not None:
        keep &= values >= lower
    if upper is not None:
        keep &= values <= upper
    return keep


def plugged(name: str, ratio: Ratio, plugin: Plugin) -> Tensor:
    """The tokens that the plug-in filter `name` keeps, [B, T] bool. It sees the whole batch, since its bounds may need it.

    Raises ValueError on a parameter of the wrong type, and on a result that is not [B, T] bool, because a result [B] would
    broadcast over the tokens if B = T.
    """
    function, mask = CORRECTIONS[plugin.function], ratio.mask
    check(f"correction.reject.{name}.params", function, plugin.params, inputs=("log_ratio", "mask"))
    keep = function(ratio.l, mask, **plugin.params)
    if not isinstance(keep, Tensor) or keep.shape != mask.shape or keep.dtype != torch.bool:
        returned = f"{list(keep.shape)} {keep.dtype}" if isinstance(keep, Tensor) else type(keep).__name__
        raise ValueError(
            f"correction.reject.{name}: filter {plugin.function} returned {returned}; it must return bool of "
            f"log_ratio's shape {list(mask.shape)}, for whole responses keep[:, None].expand_as(mask)"
        )
    return keep


def _statistic(ratio: Ratio, filter_: Reject) -> Tensor:
    if filter_.statistic == "ratio":
        return ratio.at_level("token" if filter_.level in ("worst_token", "suffix") else filter_.level)
    values = _per_token(ratio, filter_.statistic)
    if filter_.level == "worst_token" and filter_.statistic == "prob_diff":
        return values
    level = at_level(values, ratio.mask, "token" if filter_.level == "suffix" else filter_.level, ratio.batch.segments)
    return 1 + level if filter_.statistic == "mult_error" else level


def _per_token(ratio: Ratio, name: str) -> Tensor:
    """A filter's statistic `name` of each token, [B, T]. mult_error, max(ρ, 1/ρ), is less 1: equal policies give 0."""
    if name == "k2":
        return ratio.l.square() / 2
    if name == "k3":
        return ratio.k3
    if name == "mult_error":
        return torch.expm1(ratio.l.abs().clamp(max=LOG_RATIO_BOUND))
    if name == "binary_kl":
        return _larger_binary_kl(ratio)
    difference = ratio.batch.logp_rollout.exp() * torch.expm1(ratio.l)  # prob_diff = π − μ
    return torch.where(ratio.mask, difference, 0.0)


def _larger_binary_kl(ratio: Ratio) -> Tensor:
    """max(KL(p‖q), KL(q‖p)) in nats, [B, T], for p = (π, 1 − π) and q = (μ, 1 − μ), each at least 1e-6; 0 off the mask."""
    least, most = math.log(LEAST_PROBABILITY), math.log1p(-LEAST_PROBABILITY)
    pi = torch.where(ratio.mask, ratio.batch.logp_rollout + ratio.l, most).double().clamp(least, most)
    mu = torch.where(ratio.mask, ratio.batch.logp_rollout, most).double().clamp(least, most)
    return torch.maximum(binary_kl(pi, mu), binary_kl(mu, pi)).to(ratio.l.dtype)
