"""The log-probabilities of each response token by sampler and trainer as flat fp64 tensors, and means clustered over prompts."""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from algos.batch import Batch
from algos.ratios import log_ratio

FARTHEST = 50.0
"""Bound in nats to which |log ρ| of a ratio ρ is clamped, because e⁵⁰ can be squared and summed in fp64."""


BASES = {"2": math.log(2), "10": math.log(10)}
"""Base of logarithms that are not natural -> the factor by which these become nats."""

FEWEST = 4
"""Minimum number of clusters (prompts, or responses if the batch has no prompt numbers) for a standard error of a mean."""


class Mean(NamedTuple):
    """A mean (NaN of no values), its clustered standard error (NaN below `FEWEST` clusters), and the number of clusters."""

    mean: float
    error: float
    clusters: int

    def z(self, expected: float) -> float:
        """The distance (mean − expected)/error as a normal deviate; NaN without an error, 0 where the mean equals `expected`.

            z = ±(8ν + 1)/(8ν + 3)·√(ν·log(1 + t²/ν)),   t = (mean − expected)/error,   ν = clusters − 1

        Source: D. L. Wallace, Annals of Mathematical Statistics 30 (1959) 1124: Student's t as a normal deviate. With 8 prompts
        t = 4 is z = 2.8. Four deviates claim no more than Student's t gives: its p is 0.6 times theirs with 4 clusters.
        """
        return normal(self.mean - expected, self.error, self.clusters - 1)


def deviate(z: float, freedom: float) -> float:
    """Student's t whose normal deviate is z > 0, with ν = `freedom` degrees of freedom. It inverts the equation of `Mean.z`."""
    root = z / _wallace(freedom)
    return math.sqrt(freedom * math.expm1(root * root / freedom))


def _wallace(freedom: float) -> float:
    return (8 * freedom + 1) / (8 * freedom + 3)


class LogpPairs:
    """The tokens of a batch whose mask is True, n of them, on the CPU. Raises ValueError without logp_old.

    mu, pi: log μ and log π_old in nats, [n] fp64. A token whose log μ or log π_old is not finite is left out and counted in
    `dropped`. l: log π_old − log μ, clamped to ±50 nats. row: number of the token's response. place, left: number of the
    response's tokens before and after the token. cluster: number of the prompt, or of the response if the batch has no prompts.
    """

    def __init__(self, batch: Batch):
        if batch.logp_old is None:
            raise ValueError("a diagnosis compares two columns: give logp_old, log π_old of the tokens in logp_rollout")
        batch = Batch._make(None if part is None else part.detach().cpu() for part in batch).widened()
        assert batch.logp_old is not None
        both = batch.logp_rollout.isfinite() & batch.logp_old.isfinite()
        mask = batch.mask & both
        self.batch, self.mask = batch, mask
        self.dropped = int((batch.mask & ~both).sum())
        self.responses = int(mask.any(-1).sum())
        self.mu, self.pi = batch.logp_rollout[mask].double(), batch.logp_old[mask].double()
        self.l = log_ratio(batch.logp_old.double(), batch.logp_rollout.double(), mask)[mask].clamp(-FARTHEST, FARTHEST)
        number = mask.cumsum(-1) - 1
        self.place, self.left = number[mask], (mask.sum(-1, keepdim=True) - 1 - number)[mask]
        self.row = torch.arange(len(mask))[:, None].expand_as(mask)[mask]
        prompt = torch.arange(len(mask)) if batch.prompt is None else batch.prompt
        self.cluster = prompt.unique(return_inverse=True)[1][self.row]

    def __len__(self) -> int:
        return len(self.l)

    @cached_property
    def rho(self) -> Tensor:
        """The ratio ρ = π_old/μ of each token, [n]."""
        return self.l.exp()

    @cached_property
    def k3(self) -> Tensor:
        """The K3 estimator ρ − 1 − log ρ ≥ 0 of each token, ρ = π_old/μ, [n]."""
        return torch.expm1(self.l) - self.l

    @cached_property
    def margin(self) -> Tensor:
        """The difference logit π − logit μ of the sampled token against all others, [n]; logit p = log p − log(1 − p).

        Rounding moves the logits of all tokens alike. It moves log p much less for a token of probability 0.999 than for one of
        0.5. 1 − p is taken as at least 1e-6, the resolution of fp32.
        """
        return (logit(self.pi) - logit(self.mu)).clamp(-FARTHEST, FARTHEST)

    def mean(self, values: Tensor, chosen: Tensor | None = None) -> Mean:
        """The mean of `values` [n] over all tokens, or those of `chosen` [n] bool, with a standard error clustered over prompts.

            error² = C/(C − 1)·Σ_c (S_c − mean·n_c)²/n²

        where S_c sums the values of the n_c tokens in cluster c, n = Σ n_c, and C counts the clusters that have a token. It is
        the linearised variance of a ratio of two totals (Cochran, Sampling Techniques, section 6.4).
        """
        cluster = self.cluster
        if chosen is not None:
            values, cluster = values[chosen], cluster[chosen]
        return clustered_mean(values, cluster)

    def by_response(self, values: Tensor) -> Tensor:
        """The sum of `values` [n] over the tokens of each response, [B]."""
        return torch.zeros(len(self.mask), dtype=torch.float64).index_add(0, self.row, values)

    @cached_property
    def counts(self) -> Tensor:
        """The number of tokens with finite log-probabilities in each response, [B] fp64."""
        return self.mask.sum(-1).double()


def clustered_mean(values: Tensor, cluster: Tensor) -> Mean:
    """The mean of `values` [n] with a standard error clustered by `cluster` [n], such as each value's prompt number."""
    n = len(values)
    if not n:
        return Mean(math.nan, math.nan, 0)
    mean = values.mean()
    sums = torch.zeros(int(cluster.max()) + 1, dtype=torch.float64).index_add(0, cluster, values - mean)
    clusters = len(cluster.unique())
    error = math.nan if clusters < FEWEST else float((sums.square().sum() * clusters / (clusters - 1)).sqrt()) / n
    return Mean(float(mean), error, clusters)


def normal(distance: float, error: float, freedom: int) -> float:
    """Convert Student's t = distance/error with ν = `freedom` degrees of freedom to a normal deviate, as `Mean.z` says."""
    if math.isnan(error) or math.isnan(distance) or distance == 0:
        return distance * error if distance else 0.0
    t = abs(distance) / error if error > 1e-12 * abs(distance) else math.inf
    return math.copysign(_wallace(freedom) * math.sqrt(freedom * math.log1p(t * t / freedom)), distance)


def logit(logp: Tensor) -> Tensor:
    """The logit log p − log(1 − p) of a log-probability, with 1 − p at least 1e-6."""
    logp = logp.clamp(max=0.0)
    return logp - torch.log(-torch.expm1(logp.clamp(max=-1e-6)))


def correlation(a: Tensor, b: Tensor) -> float:
    """Pearson's r of two tensors [n]; NaN where one of them does not vary, and for n < 3."""
    if len(a) < 3:
        return math.nan
    a, b = a - a.mean(), b - b.mean()
    size = a.square().sum() * b.square().sum()
    return float((a * b).sum() / size.sqrt()) if size > 0 else math.nan
