"""Statistics of ratios and probabilities of trainer against sampler per token. They are slow, so a run must ask for them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from algos.batch import Batch
from algos.chunks import chunked
from algos.diagnostics.rows import Rows, count, extreme, highest, mean_present, row_sum
from algos.ratios import Ratio

SHARES_ABOVE = (1.1, 2.0, 10.0)
"""Thresholds r: the share of tokens with max(ρ, 1/ρ) > r, ρ = π/μ, is reported; r = 2 gives F(τ) of R3, arXiv 2510.11370."""

ROUNDING = 1e-12
"""A variance E[x²] − E[x]² of probabilities x below `ROUNDING`·E[x²] counts as 0, because fp64 sums round."""

SUMMED = ("p", "q", "pp", "qq", "pq", "diff", "diff_sq", "mult_error", "reverse", "js")


def probabilities(batch: Batch, policy: Tensor | None = None) -> dict[str, Tensor]:
    """Differences of trainer's π and sampler's μ in a batch: fp64 scalars by name. policy: log π; None takes `logp_old`."""
    return finish_probabilities(probability_rows(batch, policy))


@torch.no_grad()
def probability_rows(batch: Batch, policy: Tensor | None = None) -> Rows:
    """Sums per response, such as that of |π − μ|, for statistics of a whole batch. policy: log π; None takes `logp_old`."""
    return chunked(_rows, Ratio(batch, policy))


def _rows(ratio: Ratio) -> Rows:
    mask, l = ratio.mask, ratio.l
    size = l.abs()
    rollout = torch.where(mask, ratio.batch.logp_rollout.to(l.dtype), -torch.inf)
    p, q = (rollout + l).exp().double(), rollout.exp().double()  # 0 off the mask
    difference = (p - q).abs()
    return {
        "n": count(mask),
        "mult_error": row_sum(torch.where(mask, size.exp(), 0.0)),
        "reverse": row_sum(torch.expm1(-l.double()) + l),
        "js": row_sum(torch.log1p(2 * torch.sinh(size.double() / 4).square())),  # log cosh(l/2), exact where l ≈ 0
        "above": torch.stack([count(size > math.log(ratio)) for ratio in SHARES_ABOVE], -1),
        "diff": row_sum(difference),
        "diff_sq": row_sum(difference.square()),
        "diff_max": highest(difference, mask).clamp(min=0),
        "p": row_sum(p),
        "q": row_sum(q),
        "pp": row_sum(p.square()),
        "qq": row_sum(q.square()),
        "pq": row_sum(p * q),
    }


@torch.no_grad()
def finish_probabilities(rows: Rows) -> dict[str, Tensor]:
    """Differences of trainer's π and sampler's μ at sampled tokens: fp64 scalars, from the whole batch's `probability_rows`.

    E is over tokens, ρ = π/μ, l = log ρ.
    mult_prob_error = E[max(ρ, 1/ρ)]; seq_mult_prob_error_{mean,max,min}: over responses, of their mean max(ρ, 1/ρ).
    k3_reverse = E[1/ρ − 1 + l] ≥ 0: with tokens from π it would estimate KL(π‖μ).
    js_divergence = E[log cosh(l/2)]: NeMo-RL's ½k3(π/m) + ½k3(μ/m) with m = (π + μ)/2 and k3(x) = x − 1 − log x.
    share_above_r: share of tokens with max(ρ, 1/ρ) > r. prob_diff_{mean,std,max}: of |π − μ| over tokens.
    prob_pearson: the correlation of π and μ over tokens, 0 where one of them does not vary (`ROUNDING`).
    """
    tokens = rows["n"].sum().clamp(min=1)
    mean = {name: rows[name].sum() / tokens for name in SUMMED}
    of_response, present = rows["mult_error"] / rows["n"].clamp(min=1), rows["n"] > 0
    least, most = -extreme(-of_response, present), extreme(of_response, present)
    of_p, of_q = mean["pp"] - mean["p"] ** 2, mean["qq"] - mean["q"] ** 2
    varies = (of_p > ROUNDING * mean["pp"]) & (of_q > ROUNDING * mean["qq"])
    covariance = mean["pq"] - mean["p"] * mean["q"]
    out = {
        "mismatch/mult_prob_error": torch.where(rows["n"].sum() > 0, mean["mult_error"], 1.0),
        "mismatch/seq_mult_prob_error_mean": torch.where(present.any(), mean_present(of_response, present), 1.0),
        "mismatch/seq_mult_prob_error_max": torch.where(present.any(), most, 1.0),
        "mismatch/seq_mult_prob_error_min": torch.where(present.any(), least, 1.0),
        "mismatch/k3_reverse": mean["reverse"],
        "mismatch/js_divergence": mean["js"],
        "mismatch/prob_diff_mean": mean["diff"],
        "mismatch/prob_diff_std": (mean["diff_sq"] - mean["diff"] ** 2).clamp(min=0).sqrt(),
        "mismatch/prob_diff_max": rows["diff_max"].amax() if rows["n"].numel() else mean["diff"],
        "mismatch/prob_pearson": torch.where(varies, covariance / (of_p * of_q).clamp(min=1e-300).sqrt(), 0.0),
    }
    for i, ratio in enumerate(SHARES_ABOVE):
        out[f"mismatch/share_above_{ratio:g}"] = rows["above"][:, i].sum() / tokens
    return out
