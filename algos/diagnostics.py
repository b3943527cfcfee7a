"""How far the rollout engine is from the trainer, before any correction.

Nothing here is clamped, so a heavy tail shows; nothing waits for the device; empty responses count nowhere.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from algos.ratios import LOG_RATIO_BOUND
from algos.rows import Rows, chunked, extreme, over
from algos.tails import pareto_k

SHARES_ABOVE = (1.1, 2.0, 10.0)
"""Ratios r for which the share of tokens with max(ρ, 1/ρ) > r is reported; 2 is R3's F(τ), arXiv 2510.11370."""


def mismatch(log_ratio: Tensor, mask: Tensor, logp_rollout: Tensor | None = None) -> dict[str, Tensor]:
    """Mismatch statistics of a whole batch as fp64 scalars: `finish_mismatch` of `mismatch_rows`."""
    return finish_mismatch(mismatch_rows(log_ratio, mask, logp_rollout))


@torch.no_grad()
def mismatch_rows(log_ratio: Tensor, mask: Tensor, logp_rollout: Tensor | None = None) -> Rows:
    """Per-response sums and extremes of l = log π − log μ ([B, T], nats, 0 off `mask`), and of π and μ."""
    return chunked(_mismatch_chunk, log_ratio, mask, logp_rollout)


def _mismatch_chunk(l: Tensor, mask: Tensor, logp_rollout: Tensor | None) -> Rows:
    l, n = l.double(), mask.sum(-1).double()
    excess = torch.expm1(l)  # ρ − 1, exact where ρ ≈ 1; 0 off the mask
    rho, size = excess + 1, l.abs()
    peak = _peak(l, mask)
    scaled = torch.where(mask, (l - peak[:, None]).exp(), 0.0)
    rows = {
        "n": n,
        "l": l.sum(-1),
        "k3": (excess - l).sum(-1),
        "excess": excess.sum(-1),
        "excess_sq": excess.square().sum(-1),
        "mult_error": torch.where(mask, torch.maximum(rho, 1 / rho), 0.0).sum(-1),
        "log_sum": peak + scaled.sum(-1).log(),
        "log_sum_sq": 2 * peak + scaled.square().sum(-1).log(),
        "l_max": torch.where(mask, l, -torch.inf).amax(-1) if l.shape[1] else n - torch.inf,
        "l_min": torch.where(mask, l, torch.inf).amin(-1) if l.shape[1] else n + torch.inf,
        "beyond": (size > LOG_RATIO_BOUND).sum(-1).double(),
        "above": torch.stack([(size > math.log(r)).sum(-1).double() for r in SHARES_ABOVE], -1),
    }
    if logp_rollout is not None:
        rollout = torch.where(mask, logp_rollout.double(), 0.0)
        q = torch.where(mask, rollout.exp(), 0.0)
        p = torch.where(mask, (rollout + l).exp(), 0.0)
        rows |= {
            "rollout": rollout.sum(-1),
            "diff": (p - q).abs().sum(-1),
            "diff_sq": (p - q).square().sum(-1),
            "diff_max": (p - q).abs().amax(-1) if l.shape[1] else n,
            "p": p.sum(-1),
            "q": q.sum(-1),
            "pp": p.square().sum(-1),
            "qq": q.square().sum(-1),
            "pq": (p * q).sum(-1),
        }
    return rows


@torch.no_grad()
def finish_mismatch(rows: Rows) -> dict[str, Tensor]:
    """Mismatch statistics from the rows of the whole batch, fp64 scalars.

    With E over tokens, E_i over responses, l̄_i the mean of l in a response, S_i its sum, ρ = e^l, ρ_i = e^S_i:
    kl = E[−l] and k3_kl = E[ρ − 1 − l] ≥ 0 estimate KL(μ‖π) in nats per token; chi2_token = E[ρ²] − 1 and
    chi2_seq = E_i[ρ_i²] − 1, plug-in, of either sign; chi2_*_normalized = E[ρ²]/E[ρ]² − 1 = 1/ess − 1 ≥ 0,
    self-normalised; ess_* = (Σρ)²/(n·Σρ²) in [1/n, 1]; ratio_mean and ratio_std of ρ; share_above_r of max(ρ, 1/ρ) > r;
    pareto_k of ρ_i; ppl_ratio = E_i e^−l̄; log_ppl_diff = E_i[−l̄]; with the rollout's log-probabilities also both
    perplexities, the absolute probability difference |π − μ| and the Pearson correlation of π and μ over tokens.
    The names under rollout_corr/ are verl's, of verl's formulas without their clamps, their 1e-8 and their empty rows.
    """
    n, tokens = rows["n"], rows["n"].sum().clamp(min=1)
    present = n > 0
    count = present.sum().clamp(min=1)
    mean_l = rows["l"] / n.clamp(min=1)
    sequence = torch.where(present, rows["l"], -torch.inf)
    token_sums = rows["log_sum"].logsumexp(0), rows["log_sum_sq"].logsumexp(0), tokens
    sequence_sums = sequence.logsumexp(0), (2 * sequence).logsumexp(0), count
    mean_excess = rows["excess"].sum() / tokens
    out = {
        "rollout_corr/kl": -rows["l"].sum() / tokens,
        "rollout_corr/k3_kl": rows["k3"].sum() / tokens,
        "rollout_corr/chi2_token": (rows["excess_sq"].sum() + 2 * rows["excess"].sum()) / tokens,
        "rollout_corr/chi2_seq": over(torch.expm1(2 * rows["l"]), present),
        "rollout_corr/ppl_ratio": over((-mean_l).exp(), present),
        "rollout_corr/log_ppl_diff": over(-mean_l, present),
        "rollout_corr/log_ppl_abs_diff": over(mean_l.abs(), present),
        "rollout_corr/log_ppl_diff_max": extreme(-mean_l, present),
        "rollout_corr/log_ppl_diff_min": -extreme(mean_l, present),
        "mismatch/ess_token": _ess(*token_sums),
        "mismatch/ess_sequence": _ess(*sequence_sums),
        "mismatch/chi2_token_normalized": 1 / _ess(*token_sums) - 1,
        "mismatch/chi2_sequence_normalized": 1 / _ess(*sequence_sums) - 1,
        "mismatch/ratio_mean": 1 + mean_excess,
        "mismatch/ratio_std": (rows["excess_sq"].sum() / tokens - mean_excess.square()).clamp(min=0).sqrt(),
        "mismatch/ratio_max": extreme(rows["l_max"], present).exp(),
        "mismatch/ratio_min": (-extreme(-rows["l_min"], present)).exp(),
        "mismatch/mult_prob_error": torch.where(n.sum() > 0, rows["mult_error"].sum() / tokens, 1.0),
        "mismatch/log_ratio_max_abs": extreme(torch.maximum(rows["l_max"], -rows["l_min"]), present),
        "mismatch/beyond_bound": rows["beyond"].sum() / tokens,
        "mismatch/pareto_k": pareto_k(sequence),
    }
    for i, ratio in enumerate(SHARES_ABOVE):
        out[f"mismatch/share_above_{ratio:g}"] = rows["above"][:, i].sum() / tokens
    if "rollout" in rows:
        out |= _probabilities(rows, mean_l, present, tokens)
    return out


def _probabilities(rows: Rows, mean_l: Tensor, present: Tensor, tokens: Tensor) -> dict[str, Tensor]:
    rollout = -rows["rollout"] / rows["n"].clamp(min=1)
    training = rollout - mean_l
    sums = {name: rows[name].sum() / tokens for name in ("p", "q", "pp", "qq", "pq", "diff", "diff_sq")}
    variances = (sums["pp"] - sums["p"] ** 2) * (sums["qq"] - sums["q"] ** 2)
    return {
        "rollout_corr/training_ppl": over(training.exp(), present),
        "rollout_corr/training_log_ppl": over(training, present),
        "rollout_corr/rollout_ppl": over(rollout.exp(), present),
        "rollout_corr/rollout_log_ppl": over(rollout, present),
        "mismatch/prob_diff_mean": sums["diff"],
        "mismatch/prob_diff_std": (sums["diff_sq"] - sums["diff"] ** 2).clamp(min=0).sqrt(),
        "mismatch/prob_diff_max": rows["diff_max"].amax() if present.numel() else sums["diff"],
        "mismatch/prob_pearson": (sums["pq"] - sums["p"] * sums["q"]) / variances.clamp(min=1e-300).sqrt(),
    }


def _peak(l: Tensor, mask: Tensor) -> Tensor:
    """The largest l of each response, 0 without tokens: a finite shift for sums of exponentials."""
    if not l.shape[1]:
        return l.new_zeros(l.shape[0])
    return torch.where(mask.any(-1), torch.where(mask, l, -torch.inf).amax(-1), 0.0)


def _ess(log_sum: Tensor, log_sum_sq: Tensor, count: Tensor) -> Tensor:
    """(Σw)²/(n·Σw²) in the log domain; 1 for no weights at all."""
    return torch.where(log_sum > -torch.inf, (2 * log_sum - log_sum_sq).exp() / count, 1.0)
