"""Statistics of the distance between the rollout engine's and the trainer's probabilities, before any correction.

No log ratio is clamped to ±20, so that a heavy tail shows. No function waits for the GPU. Empty responses are left out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from algos.batch import Batch
from algos.chunks import chunked
from algos.diagnostics.pareto import pareto_k
from algos.diagnostics.rows import SUMS, Rows, count, extreme, highest, lowest, mean_present, moments, row_sum, share, sums
from algos.ratios import LOG_RATIO_BOUND, Ratio


def mismatch(batch: Batch, policy: Tensor | None = None) -> dict[str, Tensor]:
    """Mismatch statistics of a whole batch, such as K3 and ESS: fp64 scalars by name. policy: log π; None takes `logp_old`."""
    return finish_mismatch(mismatch_rows(batch, policy))


@torch.no_grad()
def mismatch_rows(batch: Batch, policy: Tensor | None = None) -> Rows:
    """Per response, [B]: sums and extremes of l = log π − log μ, and the sum of log μ. policy: log π; None takes `logp_old`."""
    return chunked(ratio_rows, Ratio(batch, policy))


def ratio_rows(ratio: Ratio) -> Rows:
    """Per response, [B]: sums and extremes of the log ratio l, sums of ρ = e^l, and the sum of log μ, from a batch's `Ratio`."""
    return {
        "n": count(ratio.mask),
        "l": row_sum(ratio.l),
        **ratio_sums(ratio),
        "l_max": highest(ratio.l, ratio.mask).clamp(min=0),  # of l and 0, the value for equal policies
        "l_min": lowest(ratio.l, ratio.mask).clamp(max=0),
        "beyond": count(ratio.l.abs() > LOG_RATIO_BOUND),
        "rollout": row_sum(torch.where(ratio.mask, ratio.batch.logp_rollout, 0.0)),
    }


def ratio_sums(ratio: Ratio) -> Rows:
    """Sums of ρ = π/μ, of ρ − 1 and of their squares over each response's tokens, [B], finite because |log ρ| is bounded."""
    rho = torch.where(ratio.excess < -0.5, ratio.l.exp(), 1 + ratio.excess)  # each where it does not round
    rho = torch.where(ratio.mask, rho, 0.0)
    return {f"ratio/{key}": value for key, value in sums(rho, ratio.excess).items()}


@torch.no_grad()
def finish_mismatch(rows: Rows) -> dict[str, Tensor]:
    """Mismatch statistics of a whole batch, fp64 scalars by name, from the sums per response of `mismatch_rows`.

    With l = log π − log μ, ρ = e^l, E over tokens and E_i over responses; l̄_i and S_i the mean and sum of l in response i,
    ρ_i = e^S_i:
    kl = E[−l] and k3_kl = E[ρ − 1 − l] ≥ 0: estimates of KL(μ‖π) in nats per token.
    chi2_token = E[ρ²] − 1 and chi2_seq = E_i[ρ_i²] − 1: plug-in estimates, of either sign.
    chi2_*_normalized = E[ρ²]/E[ρ]² − 1 = 1/ess − 1 ≥ 0: self-normalised. ess_* = (Σρ)²/(n·Σρ²) in [1/n, 1].
    ratio_mean and ratio_std of ρ; ratio_max = max(1, max ρ) and ratio_min = min(1, min ρ); pareto_k: tail shape k̂ of ρ_i.
    ppl_ratio = E_i e^−l̄_i; log_ppl_diff = E_i[−l̄_i]; training_ppl = E_i e^−mean(log π); rollout_ppl = E_i e^−mean(log μ).
    log_ratio_max_abs = max |l|; beyond_bound: share of tokens with |l| > 20.
    The names under rollout_corr/ are verl's. Its formulas are used without its clamps and its 1e-8, on responses with tokens.
    """
    n, tokens = rows["n"], rows["n"].sum().clamp(min=1)
    present = n > 0
    mean_l = rows["l"] / n.clamp(min=1)
    sequence = torch.where(present, rows["l"], -torch.inf)
    sequence_ess = _ess(sequence, present)
    rho = moments({key: rows[f"ratio/{key}"] for key in SUMS}, n, n.new_ones(1))
    token_chi2 = share(rho.variance, rho.mean.square())
    kl = -rows["l"].sum() / tokens
    rollout = -rows["rollout"] / n.clamp(min=1)
    means = {
        "rollout_corr/chi2_seq": torch.expm1(2 * rows["l"]),
        "rollout_corr/ppl_ratio": (-mean_l).exp(),
        "rollout_corr/log_ppl_diff": -mean_l,
        "rollout_corr/log_ppl_abs_diff": mean_l.abs(),
        "rollout_corr/training_ppl": (rollout - mean_l).exp(),
        "rollout_corr/training_log_ppl": rollout - mean_l,
        "rollout_corr/rollout_ppl": rollout.exp(),
        "rollout_corr/rollout_log_ppl": rollout,
    }
    highest_l, lowest_l, most, least = extreme(torch.stack([rows["l_max"], -rows["l_min"], -mean_l, mean_l]), present).unbind()
    return dict(zip(means, mean_present(torch.stack(list(means.values())), present).unbind(), strict=True)) | {
        "rollout_corr/kl": kl,
        "rollout_corr/k3_kl": (rho.off + kl).clamp(min=0),
        "rollout_corr/chi2_token": rho.variance + rho.off * (2 + rho.off),
        "rollout_corr/log_ppl_diff_max": most,
        "rollout_corr/log_ppl_diff_min": -least,
        "mismatch/ess_token": 1 / (1 + token_chi2),
        "mismatch/ess_sequence": sequence_ess,
        "mismatch/chi2_token_normalized": token_chi2,
        "mismatch/chi2_sequence_normalized": 1 / sequence_ess - 1,
        "mismatch/ratio_mean": rho.mean,
        "mismatch/ratio_std": rho.variance.sqrt(),
        "mismatch/ratio_max": highest_l.exp(),
        "mismatch/ratio_min": (-lowest_l).exp(),
        "mismatch/log_ratio_max_abs": torch.maximum(highest_l, lowest_l),
        "mismatch/beyond_bound": rows["beyond"].sum() / tokens,
        "mismatch/pareto_k": pareto_k(sequence),
    }


def _ess(log_weights: Tensor, present: Tensor) -> Tensor:
    """Effective sample size of n weights as a share, (Σw)²/(n·Σw²), computed without overflow; 1 if no weight is present."""
    largest = torch.nn.functional.pad(log_weights, (0, 1), value=-torch.inf).amax()  # the padding for an empty batch
    w = torch.where(present, (log_weights - largest).exp(), 0.0)
    return torch.where(present.any(), w.sum().square() / (w.square().sum() * present.sum()), 1.0)
