"""Log ratios of two policies at the levels (token, response, turn and others) where corrections and losses use them."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from functools import cached_property

import torch
from torch import Tensor

from algos.batch import Batch, at_least_fp32
from algos.groups import log_expectation

LOG_RATIO_BOUND = 20.0
"""Bound of |log ρ| before exp: e²⁰ ≈ 4.9e8 keeps ρ, ρ² and their sums finite in fp32. A metric reports how often it acts."""

LONGEST = 1 << 22
"""Maximum number of tokens of a response whose Σρ² is finite for all ratios. A constant, so that padding does not matter."""

LEVELS = ("token", "prefix", "sequence", "geometric", "segment", "segment_geometric", "worst_token")


def excess_bound(dtype: torch.dtype) -> float:
    """Bound of |log ρ| in ρ − 1, with which Σρ² over LONGEST tokens is finite: 35.7 nats in fp32, 346 in fp64."""
    return (math.log(torch.finfo(dtype).max) - math.log(LONGEST)) / 2 - 1  # less 1 for rounding


def log_ratio(logp: Tensor, logp_base: Tensor, mask: Tensor) -> Tensor:
    """The log ratio l = log π − log μ in nats on response tokens, 0 elsewhere, [B, T], in the wider dtype, at least fp32."""
    assert logp.shape == logp_base.shape == mask.shape and mask.dtype == torch.bool and mask.ndim == 2
    dtype = torch.promote_types(torch.promote_types(logp.dtype, logp_base.dtype), torch.float32)
    return torch.where(mask, logp.to(dtype) - logp_base.to(dtype), 0.0)


class Ratio:
    """The mismatch ratio ρ = π/μ of a batch and quantities derived from it, each computed once, when first read.

    policy: log π [B, T] in nats; None for π_old, the batch's `logp_old`. Raises ValueError when there is neither.
    """

    def __init__(self, batch: Batch, policy: Tensor | None = None):
        self.batch, self.mask = batch.widened(), batch.mask
        if policy is None:
            policy = batch.logp_old
        if policy is None:
            raise ValueError("the mismatch ratio needs logp_old, or the log-probabilities of another policy as `policy`")
        self.policy = at_least_fp32(policy)
        self._values: dict[Hashable, Tensor] = {}

    @cached_property
    def l(self) -> Tensor:  # noqa: E743  # as in the equations
        """The log ratio log π − log μ, [B, T] in nats, 0 off the mask."""
        return log_ratio(self.policy, self.batch.logp_rollout, self.mask)

    def cached(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """The value stored under a key; `make` computes it at its first use."""
        if key not in self._values:
            self._values[key] = make()
        return self._values[key]

    def at_level(self, level: str) -> Tensor:
        """The ratio ρ at a level, [B, T] or [B, 1], with its logarithm bounded.

        level=group is GEPO's ratio π̄/Ê[μ̄], with Ê from `groups.log_expectation`; 1 for a response without tokens. Raises
        ValueError on an unknown level, and if the batch lacks the segments or the prompt that the level needs.
        """
        if level == "group":
            return self.cached(level, lambda: bounded_exp(self._over_expectation()))
        return self.cached(level, lambda: bounded_exp(at_level(self.l, self.mask, level, self.batch.segments)))

    def _over_expectation(self) -> Tensor:
        """The difference log π̄ − log Ê[μ̄], [B, 1], with π̄, μ̄ the geometric means of a response's token probabilities."""
        if self.batch.prompt is None:
            raise ValueError("level=group needs prompt, the number of the prompt that each response answers; give a Batch of it")
        log_mu = at_level(torch.where(self.mask, self.batch.logp_rollout, 0.0), self.mask, "geometric")
        present = self.mask.any(-1)
        distance = log_mu[:, 0] - log_expectation(log_mu[:, 0], present, self.batch.prompt)
        log_w = at_level(self.l, self.mask, "geometric") + distance[:, None]
        return torch.where(present[:, None], log_w, 0.0)

    @cached_property
    def excess(self) -> Tensor:
        """The excess ρ − 1, exact where ρ ≈ 1. l is bounded at `excess_bound`, 35.7 nats in fp32, for finite sums."""
        bound = excess_bound(self.l.dtype)
        return torch.expm1(self.l.clamp(-bound, bound))

    @cached_property
    def k3(self) -> Tensor:
        """The K3 estimator ρ − 1 − l ≥ 0 of each token, with ρ bounded and l bounded above.

        Without the bound on l, the difference would change its sign beyond e²⁰ nats. Clamping ρ − 1 is the same as clamping l in
        it, because expm1 is monotone.
        """
        bounded = self.excess.clamp(math.expm1(-LOG_RATIO_BOUND), math.expm1(LOG_RATIO_BOUND))
        return bounded - self.l.clamp(max=LOG_RATIO_BOUND)


def at_level(values: Tensor, mask: Tensor, level: str, segments: Tensor | None = None) -> Tensor:
    """Reduce per-token values (0 off the mask) to a level.

    token: unchanged, [B, T]. prefix: Σ_{s ≤ t}, [B, T], 0 off the mask.
    sequence: Σ_t, [B, 1]. geometric: mean_t, [B, 1]. worst_token: max_t, [B, 1].
    segment, segment_geometric: Σ and mean over the tokens of the response with equal id in `segments`, [B, T], 0 off the mask.
    `segments`: [B, T] integers 0 ≤ id < T, a turn's number within its response; read on the mask only.
    A response without tokens gives 0. Raises ValueError on an unknown level or missing segments.
    """
    if level == "token":
        return values
    if level == "prefix":
        return torch.where(mask, values.cumsum(-1), 0.0)
    if level == "sequence":
        return values.sum(-1, keepdim=True)
    if level == "geometric":
        return values.sum(-1, keepdim=True) / sizes(mask, level)
    if level in ("segment", "segment_geometric"):
        total = _segment_sum(values, mask, segments)
        return total if level == "segment" else total / sizes(mask, level, segments)
    if level == "worst_token":
        if not values.shape[-1]:
            return values.new_zeros(len(values), 1)
        smallest = torch.finfo(values.dtype).min
        worst = torch.where(mask, values, smallest).amax(-1, keepdim=True)
        return torch.where(mask.any(-1, keepdim=True), worst, 0.0)
    raise ValueError(f"level={level}: accepted are {', '.join(LEVELS)}")


def sizes(mask: Tensor, level: str, segments: Tensor | None = None) -> Tensor:
    """Number of tokens that share a value at `level`: 1, the response's [B, 1], or the segment's [B, T]; at least 1."""
    if level in ("token", "prefix"):
        return mask.new_ones((1, 1), dtype=torch.long)
    if level in ("segment", "segment_geometric"):
        return _segment_sum(mask.long(), mask, segments).clamp(min=1)
    return mask.sum(-1, keepdim=True).clamp(min=1)


def ess_share(batch: Batch, policy: Tensor | None = None) -> Tensor:
    """The effective share of the sequence weights, (Σ_i w_i)²/(B·Σ_i w_i²) in [1/B, 1]; an fp64 scalar.

    Where w_i = Π_t ρ_t and B counts the responses with a token. policy: log π [B, T] in nats, None for π_old. The share is a
    ratio of sums of exponentials, so that no product overflows. Limits: equal weights, or no token at all, give 1.
    """
    ratio = Ratio(batch, policy)
    present = ratio.mask.any(-1)
    log_w = torch.where(present, ratio.l.double().sum(-1), -torch.inf)
    share = (2 * log_w.logsumexp(0) - (2 * log_w).logsumexp(0)).exp() / present.sum()
    return torch.where(present.any(), share, 1.0)


def binary_kl(logp: Tensor, logq: Tensor) -> Tensor:
    """KL((q, 1 − q) ‖ (p, 1 − p)) of the sampled token against all others, in nats; p = exp(logp), q = exp(logq)."""
    rest_p, rest_q = -torch.expm1(logp), -torch.expm1(logq)
    return logq.exp() * (logq - logp) + torch.special.xlogy(rest_q, rest_q) - torch.special.xlogy(rest_q, rest_p)


def bounded_exp(log_values: Tensor) -> Tensor:
    """The exponential of values clamped to ±LOG_RATIO_BOUND; the gradient is 0 where a value was clamped."""
    return log_values.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def _segment_sum(values: Tensor, mask: Tensor, segments: Tensor | None) -> Tensor:
    if segments is None:
        raise ValueError("level=segment needs segments, the number of the turn of each token")
    assert segments.shape == mask.shape and not segments.is_floating_point(), (segments.shape, segments.dtype)
    ids = torch.where(mask, segments.long(), 0)
    return torch.where(mask, torch.zeros_like(values).scatter_add(-1, ids, values).gather(-1, ids), 0)
