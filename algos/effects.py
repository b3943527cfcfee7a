"""What a correction did to a batch: its weights before and after their bounds, and its filters one by one."""

from __future__ import annotations

import torch
from torch import Tensor

from algos.corrections import Corrected, WeightSum, bounded_weights, correct, raw_weights, statistic
from algos.diagnostics import finish_mismatch, ratio_rows
from algos.ratios import Ratio
from algos.rows import Rows, beyond, chunked, extreme, merge, over, squares, total
from algos.spec import Correction, Reject


@torch.no_grad()
def examine(
    log_ratio: Tensor,
    mask: Tensor,
    spec: Correction,
    *,
    logp_rollout: Tensor,
    advantages: Tensor | None = None,
    segments: Tensor | None = None,
    batch: WeightSum | None = None,
) -> tuple[Corrected, Rows]:
    """`corrections.correct`, and in the same pass the rows of every diagnostic of the mismatch and of the correction."""
    seen: list[Rows] = []

    def observe(ratio: Ratio, weights: Tensor, kept: Tensor) -> None:
        rows = ratio_rows(ratio) | _did(ratio, weights, kept) | _statistics(ratio, spec)
        seen.append(rows | (_weights(ratio, spec) if spec.weight.level else {}))

    inputs = {"logp_rollout": logp_rollout, "advantages": advantages, "segments": segments, "batch": batch}
    corrected = correct(log_ratio, mask, spec, **inputs, observe=observe)
    rows = merge(seen)
    if spec.normalize == "batch":  # the mean was not known before the last of them
        rows |= applied_rows(corrected, mask)
    return corrected, rows


@torch.no_grad()
def finish(rows: Rows, spec: Correction) -> dict[str, Tensor]:
    """Every diagnostic from the rows that `examine` made of the whole batch."""
    weights = finish_weights(rows, spec) if spec.weight.level else {}
    return finish_mismatch(rows) | weights | finish_filters(rows, spec) | finish_applied(rows)


def applied(corrected: Corrected, mask: Tensor) -> dict[str, Tensor]:
    """What a correction did to a whole batch, as fp64 scalars: `finish_applied` of `applied_rows`."""
    return finish_applied(applied_rows(corrected, mask))


@torch.no_grad()
def applied_rows(corrected: Corrected, mask: Tensor) -> Rows:
    """Per-response sums of what a correction did."""
    return chunked(lambda w, k, m: _did(Ratio(w, m), w * m, k & m), *corrected[:2], mask)


def _did(ratio: Ratio, weights: Tensor, kept: Tensor) -> Rows:
    return {
        "n": ratio.n,
        "weight": total(weights),
        "weight_sq": squares(weights),
        "zero": beyond(torch.eq, weights, 0.0) - (weights.shape[1] - ratio.n),  # padding is 0 too
        "kept": total(kept.view(torch.uint8)),
    }


@torch.no_grad()
def finish_applied(rows: Rows) -> dict[str, Tensor]:
    """Mean and effective sample size of the final weights over tokens, and the shares that were kept.

    weight_ess = (Σw)²/(n·Σw²). rs_masked_fraction and rs_seq_masked_fraction are verl's: tokens rejected, and responses
    with a rejected token; kept_sequences are responses with a token left.
    """
    n, tokens = rows["n"], rows["n"].sum().clamp(min=1)
    count = (n > 0).sum().clamp(min=1)
    total, squares = rows["weight"].sum(), rows["weight_sq"].sum()
    return {
        "correction/weight_mean": total / tokens,
        "correction/weight_ess": _share(total.square(), squares * tokens),
        "correction/weight_zero": rows["zero"].sum() / tokens,
        "correction/kept_tokens": rows["kept"].sum() / tokens,
        "correction/kept_sequences": (rows["kept"] > 0).double().sum() / count,
        "rollout_corr/rollout_rs_masked_fraction": (n - rows["kept"]).sum() / tokens,
        "rollout_corr/rollout_rs_seq_masked_fraction": (rows["kept"] < n).double().sum() / count,
    }


@torch.no_grad()
def weight_rows(log_ratio: Tensor, mask: Tensor, spec: Correction, segments: Tensor | None = None) -> Rows:
    """Per-response sums and extremes of the weight before (raw) and after (applied) its bounds, not normalised."""
    return chunked(lambda l, m, s: _weights(Ratio(l, m, segments=s), spec), log_ratio, mask, segments)


def _weights(ratio: Ratio, spec: Correction) -> Rows:
    raw = raw_weights(ratio, spec.weight)
    used, bounds = bounded_weights(raw, spec.weight), thresholds(spec)
    return _spread("raw", raw, ratio, *bounds, 1.0) | _spread("applied", used, ratio, *bounds, 1.0)


@torch.no_grad()
def finish_weights(rows: Rows, spec: Correction) -> dict[str, Tensor]:
    """verl's rollout_is_* statistics of the applied weight, and the same of the raw one under correction/raw_*.

    With E over tokens and w̄_i the mean weight of a response: mean = E[w], std, eff_sample_size = E[w]²/E[w²], max,
    min; ratio_fraction_high/low: share of tokens whose raw weight is beyond the bounds (lower = 1/upper where there is
    none); seq_{mean,std,max,min,max_deviation} of w̄_i (std with n − 1, deviation from 1), seq_fraction_high/low of its
    raw value; oob_ratio, with action=mask only: share of tokens whose weight became 0. verl takes max and min of
    sequence weights before the bounds; here raw is raw and applied is applied.
    """
    raw, used = _finish("raw", rows, *thresholds(spec), 1.0), _finish("applied", rows, *thresholds(spec), 1.0)
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
    return out


@torch.no_grad()
def filter_rows(
    log_ratio: Tensor,
    mask: Tensor,
    spec: Correction,
    *,
    logp_rollout: Tensor | None = None,
    segments: Tensor | None = None,
) -> Rows:
    """Per-response sums and extremes of the statistic of each filter under `reject`; plug-ins have none."""

    return chunked(lambda *tensors: _statistics(Ratio(*tensors), spec), log_ratio, mask, logp_rollout, segments)


def _statistics(ratio: Ratio, spec: Correction) -> Rows:
    rows: Rows = {}
    for name, filter_ in _filters(spec).items():
        rows |= _spread(f"reject.{name}", statistic(ratio, filter_), ratio, *_bounds(filter_), _centre(filter_))
    return rows


@torch.no_grad()
def finish_filters(rows: Rows, spec: Correction) -> dict[str, Tensor]:
    """verl's rollout_rs_<name>_* of each filter's statistic: ρ for statistic=ratio (verl's k1 filters report −log ρ).

    mean, std, max, min and fraction_high/low (share beyond the bounds, before `when` excuses any) over tokens;
    seq_{mean,std,max,min,max_deviation,fraction_high,fraction_low} over the responses' means.
    """
    return {
        f"rollout_corr/rollout_rs_{name}_{statistic_}": value
        for name, filter_ in _filters(spec).items()
        for statistic_, value in _finish(f"reject.{name}", rows, *_bounds(filter_), _centre(filter_)).items()
        if statistic_ != "eff_sample_size"
    }


def thresholds(spec: Correction) -> tuple[float, float]:
    """The weight's bounds as verl reads them: a missing lower bound is 1/upper, a missing upper one none."""
    upper = spec.weight.upper if spec.weight.upper is not None else float("inf")
    return (1 / upper if spec.weight.lower is None else spec.weight.lower), upper


def _filters(spec: Correction) -> dict[str, Reject]:
    return {name: filter_ for name, filter_ in spec.reject.items() if isinstance(filter_, Reject)}


def _bounds(filter_: Reject) -> tuple[float, float]:
    lower = -float("inf") if filter_.lower is None else filter_.lower
    return lower, float("inf") if filter_.upper is None else filter_.upper


def _centre(filter_: Reject) -> float:
    """The statistic's value for equal policies."""
    return 1.0 if filter_.statistic in ("ratio", "mult_error") else 0.0


def _spread(name: str, values: Tensor, ratio: Ratio, lower: float, upper: float, centre: float) -> Rows:
    """Sums and extremes over tokens; a value that a whole response shares, [B, 1], is counted instead of repeated.

    Off the mask values hold `centre`, their value for equal policies. Sums are of values − centre, so that small
    spreads survive the batch's own precision.
    """
    n, columns = ratio.n, values.shape[-1] if values.ndim else 1
    shared = columns == 1
    values = values.expand(len(n), columns)
    outside = torch.where(n > 0, 0.0, -torch.inf).to(values.dtype)[:, None] if shared else ratio.outside
    times = n if shared else 1.0
    off = values - centre
    rows = {
        "n": n,
        "off": times * total(off),
        "off_sq": times * squares(off),
        "max": (values + outside).amax(-1).double() if columns else n,
        "min": (values - outside).amin(-1).double() if columns else n,
        "high": times * beyond(torch.gt, values, upper),
        "low": times * beyond(torch.lt, values, lower),
    }
    return {f"{name}/{key}": value for key, value in rows.items()}


def _finish(name: str, rows: Rows, lower: float, upper: float, centre: float) -> dict[str, Tensor]:
    own = {key.removeprefix(f"{name}/"): value for key, value in rows.items() if key.startswith(f"{name}/")}
    n, present, tokens = own["n"], own["n"] > 0, own["n"].sum().clamp(min=1)
    mean = centre + own["off"].sum() / tokens
    variance = (own["off_sq"].sum() / tokens - (mean - centre).square()).clamp(min=0)
    row = centre + own["off"] / n.clamp(min=1)
    row_mean = over(row, present)
    spread = torch.where(present, (row - row_mean).square(), 0.0).sum() / (present.sum() - 1).clamp(min=1)
    return {
        "mean": mean,
        "std": variance.sqrt(),
        "eff_sample_size": _share(mean.square(), mean.square() + variance),
        "max": extreme(own["max"], present),
        "min": -extreme(-own["min"], present),
        "fraction_high": own["high"].sum() / tokens,
        "fraction_low": own["low"].sum() / tokens,
        "seq_mean": row_mean,
        "seq_std": spread.sqrt(),
        "seq_max": extreme(row, present),
        "seq_min": -extreme(-row, present),
        "seq_max_deviation": extreme((row - centre).abs(), present),
        "seq_fraction_high": over((row > upper).double(), present),
        "seq_fraction_low": over((row < lower).double(), present),
    }


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """part/whole, 0 where both are."""
    return torch.where(whole > 0, part / whole.clamp(min=1e-300), 0.0)
