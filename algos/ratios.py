"""Log ratios of two policies per token, per response, per turn and at the other levels that corrections and losses use."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from functools import cached_property

import torch
from torch import Tensor

from algos.batch import Batch, at_least_fp32
from algos.groups import log_expectation

LOG_RATIO_BOUND = 20.0
"""Bound of |log ρ| in nats before exp, for a ratio ρ of two policies: e²⁰ ≈ 4.9e8 keeps ρ, ρ² and their sums finite in fp32."""

LONGEST = 1 << 22
"""Longest response, in tokens, whose Σρ² is finite for all ratios ρ: a constant, because a batch's width varies by padding."""

LEVELS = ("token", "prefix", "sequence", "geometric", "segment", "segment_geometric", "worst_token")


def excess_bound(dtype: torch.dtype) -> float:
    """Bound of |log ρ| when ρ − 1 is computed, so that Σρ² over `LONGEST` tokens is finite: 35.7 nats in fp32, 346 in fp64."""
    return (math.log(torch.finfo(dtype).max) - math.log(LONGEST)) / 2 - 1  # less 1 for rounding


def log_ratio(logp: Tensor, logp_base: Tensor, mask: Tensor) -> Tensor:
    """The log ratio `logp` − `logp_base` in nats, [B, T], 0 off the mask; in the wider of the two dtypes, at least fp32."""
    assert logp.shape == logp_base.shape == mask.shape and mask.dtype == torch.bool and mask.ndim == 2
    dtype = torch.promote_types(torch.promote_types(logp.dtype, logp_base.dtype), torch.float32)
    return torch.where(mask, logp.to(dtype) - logp_base.to(dtype), 0.0)


class Ratio:
    """The mismatch ratio ρ = π/μ of trainer and sampler per token, and quantities derived from it, each computed only once.

    policy: log π [B, T] in nats; None takes the batch's `logp_old`. Raises ValueError when there is neither.
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
        """The log ratio l = log π − log μ of trainer and sampler, [B, T] in nats, 0 off the mask."""
        return log_ratio(self.policy, self.batch.logp_rollout, self.mask)

    def cached(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """Return the tensor stored under `key`, a quantity derived from the ratio. `make` computes it at the first use."""
        if key not in self._values:
            self._values[key] = make()
        return self._values[key]

    def at_level(self, level: str) -> Tensor:
        """The ratio ρ = π/μ at a level such as token or sequence, [B, T] or [B, 1], with |log ρ| ≤ `LOG_RATIO_BOUND`.

        level=group is GEPO's ratio π̄/Ê[μ̄], with Ê from `groups.log_expectation`; 1 for a response without tokens. Raises
        ValueError on an unknown level, and if the batch lacks the segments or the prompt that the level needs.
        """
        if level == "group":
            return self.cached(level, lambda: bounded_exp(self._over_expectation()))
        return self.cached(level, lambda: bounded_exp(at_level(self.l, self.mask, level, self.batch.segments)))

    def _over_expectation(self) -> Tensor:
        """GEPO's log ratio log π̄ − log Ê[μ̄] of each response, [B, 1]; π̄, μ̄: geometric means; Ê: `groups.log_expectation`."""
        if self.batch.prompt is None:
            raise ValueError("level=group needs prompt, the number of the prompt that each response answers; give a Batch of it")
        log_mu = at_level(torch.where(self.mask, self.batch.logp_rollout, 0.0), self.mask, "geometric")
        present = self.mask.any(-1)
        distance = log_mu[:, 0] - log_expectation(log_mu[:, 0], present, self.batch.prompt)
        log_w = at_level(self.l, self.mask, "geometric") + distance[:, None]
        return torch.where(present[:, None], log_w, 0.0)

    @cached_property
    def excess(self) -> Tensor:
        """The excess ρ − 1 of each token, [B, T], exact near ρ = 1; |log ρ| is bounded by `excess_bound` for finite sums."""
        bound = excess_bound(self.l.dtype)
        return torch.expm1(self.l.clamp(-bound, bound))

    @cached_property
    def k3(self) -> Tensor:
        """The K3 estimator ρ − 1 − l ≥ 0 of each token, [B, T] nats, l = log π − log μ clamped to ≤ 20, and to ±20 in ρ = e^l.

        Without the bound on l, the difference would become negative beyond e²⁰ nats. Because expm1 is monotone, clamping ρ − 1
        is the same as clamping its l.
        """
        bounded = self.excess.clamp(math.expm1(-LOG_RATIO_BOUND), math.expm1(LOG_RATIO_BOUND))
        return bounded - self.l.clamp(max=LOG_RATIO_BOUND)


def at_level(values: Tensor, mask: Tensor, level: str, segments: Tensor | None = None) -> Tensor:
    """Sum, average or maximise `values` [B, T], which are 0 off the mask, over the tokens that share a value at a level.

    token: unchanged, [B, T]. prefix: the sum up to and with the token, [B, T], 0 off the mask.
    sequence, geometric, worst_token: the sum, mean and maximum over the response, [B, 1].
    segment, segment_geometric: the sum and mean over the response's tokens of equal id in `segments`, [B, T], 0 off the mask.
    segments: [B, T] integers 0 ≤ id < T, the number of each token's turn in its response; read on the mask only.
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
    """Number, at least 1, of tokens that share a value at `level`: 1 [1, 1], the response's [B, 1], or the segment's [B, T]."""
    if level in ("token", "prefix"):
        return mask.new_ones((1, 1), dtype=torch.long)
    if level in ("segment", "segment_geometric"):
        return _segment_sum(mask.long(), mask, segments).clamp(min=1)
    return mask.sum(-1, keepdim=True).clamp(min=1)


def ess_share(batch: Batch, policy: Tensor | None = None) -> Tensor:
    """Effective sample size of the sequence weights as a share of the B responses, (Σ_i w_i)²/(B·Σ_i w_i²) in [1/B, 1].

    w_i = Π_t π/μ over the tokens of response i; only responses with a token count. policy: log π [B, T] in nats, None for π_old.
    Logarithms keep products from overflowing. Returns an fp64 scalar. Limits: equal weights, or no token at all, give 1.
    """
    ratio = Ratio(batch, policy)
    present = ratio.mask.any(-1)
    log_w = torch.where(present, ratio.l.double().sum(-1), -torch.inf)
    share = (2 * log_w.logsumexp(0) - (2 * log_w).logsumexp(0)).exp() / present.sum()
    return torch.where(present.any(), share, 1.0)


def binary_kl(logp: Tensor, logq: Tensor) -> Tensor:
    """KL((q, 1 − q) ‖ (p, 1 − p)) in nats, for two probabilities p = exp(`logp`) and q = exp(`logq`) of the sampled token."""
    rest_p, rest_q = -torch.expm1(logp), -torch.expm1(logq)
    return logq.exp() * (logq - logp) + torch.special.xlogy(rest_q, rest_q) - torch.special.xlogy(rest_q, rest_p)


def bounded_exp(log_values: Tensor) -> Tensor:
    """The exponential of log ratios clamped to ±20 nats (`LOG_RATIO_BOUND`); the gradient is 0 where a value was clamped."""
    return log_values.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def _segment_sum(values: Tensor, mask: Tensor, segments: Tensor | None) -> Tensor:
    if segments is None:
        raise ValueError("level=segment needs segments, the number of the turn of each token")
    assert segments.shape == mask.shape and not segments.is_floating_point(), (segments.shape, segments.dtype)
    ids = torch.where(mask, segments.long(), 0)
    return torch.where(mask, torch.zeros_like(values).scatter_add(-1, ids, values).gather(-1, ids), 0)
