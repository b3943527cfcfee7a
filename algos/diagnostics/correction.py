"""Diagnostics of a mismatch correction: its weights, its filters, and the tokens and weights that remain."""

from __future__ import annotations

import torch
from torch import Tensor

from algos.batch import Batch
from algos.chunks import chunked
from algos.corrections.apply import Corrected, bounded_weights, correct_ratio, passes, raw_weights, statistic
from algos.corrections.spec import Correction, Reject
from algos.diagnostics.mismatch import finish_mismatch, ratio_rows
from algos.diagnostics.rows import (
    SUMS,
    Rows,
    count,
    extreme,
    highest,
    lowest,
    mean_present,
    moments,
    row_sum,
    share,
    squares,
    sums,
)
from algos.ratios import Ratio


def correct_with_diagnostics(batch: Batch, spec: Correction, policy: Tensor | None = None) -> tuple[Corrected, Rows]:
    """Apply the correction `spec` to a batch, and compute the numbers per response from which all diagnostics follow."""
    ratio = Ratio(batch, policy)
    corrected = correct_ratio(ratio, spec)
    return corrected, correction_rows(ratio, spec) | applied_rows(corrected, batch.mask)


@torch.no_grad()
def finish_diagnostics(rows: Rows, spec: Correction) -> dict[str, Tensor]:
    """Every diagnostic of mismatch and correction by name, from sums per response of the whole batch."""
    weights = finish_weights(rows, spec) if spec.weight.level else {}
    return finish_mismatch(rows) | weights | finish_filters(rows, spec) | finish_applied(rows)


@torch.no_grad()
def correction_rows(ratio: Ratio, spec: Correction) -> Rows:
    """Sums and extremes per response of log π − log μ, the weight and each filter's statistic, without plug-ins: name -> [B]."""

    def rows(part: Ratio) -> Rows:
        return ratio_rows(part) | _weights(part, spec) | _filters(part, spec)

    return chunked(rows, ratio, whole=spec.weight.level == "group")  # a chunk has no whole groups


def applied(corrected: Corrected, mask: Tensor) -> dict[str, Tensor]:
    """Effect of a correction on a whole batch: statistics of its final weights, shares of the tokens and responses it keeps."""
    return finish_applied(applied_rows(corrected, mask))


@torch.no_grad()
def applied_rows(corrected: Corrected, mask: Tensor) -> Rows:
    """Per response, [B]: sums of a correction's final weights, and counts of the tokens it keeps and of those at weight ≠ 0."""
    weights, kept = corrected.weights, corrected.kept
    return {
        "n": count(mask),
        "weight": row_sum(weights).double(),
        "weight_sq": squares(weights).double(),
        "zero": count(mask & (weights == 0)),
        "kept": count(kept),
        "used": count(kept & (weights != 0)),
    }


@torch.no_grad()
def finish_applied(rows: Rows) -> dict[str, Tensor]:
    """Statistics of a correction's final weights w over the n tokens of the batch, and of the tokens and responses that it keeps.

    weight_mean; weight_ess = (Σw)²/(n·Σw²), the effective sample size; weight_zero: share of tokens with w = 0. kept_tokens,
    kept_sequences: shares of kept tokens, and of responses with a kept token. rs_masked_fraction, rs_seq_masked_fraction
    (verl's): shares of rejected tokens, and of responses with a rejected token. used_length, dropped_length: mean length of the
    responses with a token kept at w > 0, and of all others; NaN if there are none.
    """
    n, tokens = rows["n"], rows["n"].sum().clamp(min=1)
    used = rows["used"] > 0
    dropped = (n > 0) & ~used
    responses = (n > 0).sum().clamp(min=1)
    total, total_sq = rows["weight"].sum(), rows["weight_sq"].sum()
    return {
        "correction/weight_mean": total / tokens,
        "correction/weight_ess": share(total.square(), total_sq * tokens),
        "correction/weight_zero": rows["zero"].sum() / tokens,
        "correction/kept_tokens": rows["kept"].sum() / tokens,
        "correction/kept_sequences": (rows["kept"] > 0).double().sum() / responses,
        "correction/used_length": (n * used).sum().double() / used.sum(),
        "correction/dropped_length": (n * dropped).sum().double() / dropped.sum(),
        "rollout_corr/rollout_rs_masked_fraction": (n - rows["kept"]).sum() / tokens,
        "rollout_corr/rollout_rs_seq_masked_fraction": (rows["kept"] < n).double().sum() / responses,
    }


@torch.no_grad()
def finish_weights(rows: Rows, spec: Correction) -> dict[str, Tensor]:
    """Statistics of a correction's bounded weight, named rollout_is_* as in verl, and of the unbounded one, as correction/raw_*.

    With E over tokens and w̄_i the mean weight of response i: mean = E[w], std, eff_sample_size = E[w]²/E[w²], max, min.
    ratio_fraction_high/low: share of tokens whose raw weight is beyond the bounds (lower = 1/upper where there is none).
    seq_{mean,std,max,min,max_deviation}: statistics of w̄_i, with std over n − 1, and max |w̄_i − 1|.
    seq_fraction_high/low: share of responses whose raw w̄_i is beyond the bounds.
    oob_ratio, with action=mask only: share of tokens whose weight became 0.
    batch_norm_factor, with normalize=batch and no segment level: the mean by which the weights are divided.
    verl takes rollout_is_max and rollout_is_min of sequence weights before the bounds; here they are taken after the bounds.
    """
    spreads = _finish(rows, dict.fromkeys(("raw", "applied"), (*thresholds(spec), 1.0)))
    raw, used = spreads["raw"], spreads["applied"]
    out = {f"correction/raw_{name}": raw[name] for name in ("mean", "std", "eff_sample_size", "max", "min")}
    out |= {f"rollout_corr/rollout_is_{name}": used[name] for name in ("mean", "std", "eff_sample_size", "max", "min")}
    names = ("seq_mean", "seq_std", "seq_max", "seq_min", "seq_max_deviation")
    out |= {f"rollout_corr/rollout_is_{name}": used[name] for name in names}
    for side in ("high", "low"):
        out[f"rollout_corr/rollout_is_ratio_fraction_{side}"] = raw[f"fraction_{side}"]
        out[f"rollout_corr/rollout_is_seq_fraction_{side}"] = raw[f"seq_fraction_{side}"]
    if spec.weight.action == "mask":
        low = raw["fraction_low"] if spec.weight.lower is not None else 0.0
        out["rollout_corr/rollout_is_oob_ratio"] = raw["fraction_high"] + low
    if spec.normalize == "batch" and not (spec.weight.level or "").startswith("segment"):
        by_token = spec.weight.level in ("token", "prefix")
        out["rollout_corr/rollout_is_batch_norm_factor"] = used["mean" if by_token else "seq_mean"]
    return out


@torch.no_grad()
def finish_filters(rows: Rows, spec: Correction) -> dict[str, Tensor]:
    """Summary of each filter's statistic, named as verl's rollout_rs_<name>_*.

    A filter of statistic=ratio is summarised by ρ, and verl's k1 by −log ρ.
    mean, std, max, min: over tokens. fraction_high/low: share of tokens beyond the bounds, whether or not `when` exempts them.
    seq_{mean,std,max,min,max_deviation,fraction_high,fraction_low}: the same over the mean of the statistic in each response.
    masked_fraction, seq_masked_fraction: shares of tokens that this filter rejects, and of responses with such a token.
    """
    filters = _rejects(spec)
    spreads = _finish(rows, {f"reject.{name}": (*_bounds(filter_), _centre(filter_)) for name, filter_ in filters.items()})
    for key, spread in spreads.items():
        masked = rows[f"{key}/masked"]
        spread["masked_fraction"] = masked.sum() / rows[f"{key}/n"].sum().clamp(min=1)
        spread["seq_masked_fraction"] = mean_present((masked > 0).double(), rows[f"{key}/n"] > 0)
    return {
        f"rollout_corr/rollout_rs_{name}_{statistic_}": value
        for name in filters
        for statistic_, value in spreads[f"reject.{name}"].items()
        if statistic_ != "eff_sample_size"
    }


def thresholds(spec: Correction) -> tuple[float, float]:
    """The weight's bounds (lower, upper) as verl reads them: a missing lower bound is 1/upper, a missing upper bound is ∞."""
    upper = spec.weight.upper if spec.weight.upper is not None else float("inf")
    return (1 / upper if spec.weight.lower is None else spec.weight.lower), upper


def _rejects(spec: Correction) -> dict[str, Reject]:
    return {name: filter_ for name, filter_ in spec.reject.items() if isinstance(filter_, Reject)}


def _bounds(filter_: Reject) -> tuple[float, float]:
    lower = -float("inf") if filter_.lower is None else filter_.lower
    return lower, float("inf") if filter_.upper is None else filter_.upper


def _centre(filter_: Reject) -> float:
    """The value of a filter's statistic when trainer and sampler agree, π = μ: 1 for ratio and mult_error, 0 for all others."""
    return 1.0 if filter_.statistic in ("ratio", "mult_error") else 0.0


def _weights(ratio: Ratio, spec: Correction) -> Rows:
    """Sums and extremes per response, [B], of the weight before its bounds (raw) and after (applied), not divided by a mean."""
    if spec.weight.level is None:
        return {}
    raw = raw_weights(ratio, spec.weight)
    used = bounded_weights(raw, spec.weight)
    off = ratio.excess if spec.weight.level == "token" else raw - 1
    rows = {f"raw/{key}": value for key, value in _spread(raw, off, ratio, thresholds(spec)).items()}
    return rows | {f"applied/{key}": value for key, value in _spread(used, used - 1, ratio).items()}


def _filters(ratio: Ratio, spec: Correction) -> Rows:
    rows: Rows = {}
    for name, filter_ in _rejects(spec).items():
        values = statistic(ratio, filter_)
        spread = _spread(values, values - _centre(filter_), ratio, _bounds(filter_))
        spread["masked"] = count(ratio.mask & ~passes(name, ratio, filter_))
        rows |= {f"reject.{name}/{key}": value for key, value in spread.items()}
    return rows


def _spread(values: Tensor, off: Tensor, ratio: Ratio, bounds: tuple[float, float] | None = None) -> Rows:
    """Sums and extremes of `values` over the tokens of each response; a value [B, 1] of a whole response counts for each token.

    off: `values` less their value where π = μ, so 0 off the mask. Summing `off` keeps small spreads that rounding in the batch's
    precision would lose. With `bounds` (lower, upper), the values beyond each are counted too.
    """
    rows = sums(torch.where(ratio.mask.any(-1, keepdim=True) if values.shape[-1] == 1 else ratio.mask, values, 0.0), off)
    if bounds is not None:
        rows |= {"low": count(values < bounds[0]), "high": count(values > bounds[1])}
    n, mask = count(ratio.mask), ratio.mask
    if values.shape[-1] == 1:
        rows, mask = {key: value * n.to(value.dtype) for key, value in rows.items()}, mask.any(-1, keepdim=True)
    return rows | {"n": n, "min": lowest(values, mask), "max": highest(values, mask)}


def _finish(rows: Rows, spreads: dict[str, tuple[float, float, float]]) -> dict[str, dict[str, Tensor]]:
    """Quantity -> statistic -> fp64 scalar, from sums per response. spreads: quantity -> (lower, upper bound, value if π = μ)."""
    if not spreads:
        return {}
    stacked = {key: torch.stack([rows[f"{name}/{key}"] for name in spreads]) for key in (*SUMS, "n", "min", "max")}
    n, smallest, largest = stacked["n"], stacked["min"], stacked["max"]
    lower, upper, centre = torch.tensor(list(spreads.values()), dtype=torch.float64).to(n.device).T[:, :, None]
    present, tokens = n[0] > 0, n.sum(-1).clamp(min=1)
    row, row_off, mean, _, variance = moments(stacked, n, centre)
    means = mean_present(torch.stack([row, (row > upper).double(), (row < lower).double()]), present)
    deviations = torch.where(present, (row - means[0][:, None]).square(), 0.0).sum(-1)
    ends = extreme(torch.stack([largest, -smallest, row, -row, row_off.abs()]), present)
    statistics = {
        "mean": mean,
        "std": variance.sqrt(),
        "eff_sample_size": share(mean.square(), mean.square() + variance),
        "max": ends[0],
        "min": -ends[1],
        "seq_mean": means[0],
        "seq_std": (deviations / (present.sum() - 1).clamp(min=1)).sqrt(),
        "seq_max": ends[2],
        "seq_min": -ends[3],
        "seq_max_deviation": ends[4],
        "seq_fraction_high": means[1],
        "seq_fraction_low": means[2],
    }
    out = {name: {key: values[k] for key, values in statistics.items()} for k, name in enumerate(spreads)}
    for k, name in enumerate(spreads):
        for side in ("high", "low"):
            if f"{name}/{side}" in rows:
                out[name][f"fraction_{side}"] = rows[f"{name}/{side}"].sum() / tokens[k]
    return out
