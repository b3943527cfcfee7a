"""What a correction did to a batch: its weights before and after their bounds, and its filters one by one."""

from __future__ import annotations

import torch
from torch import Tensor

from algos.chunks import Part, Rows, beyond, chunked, count, extreme, gather, highest, lowest, over, squares, take, total
from algos.corrections.apply import Corrected, WeightSum, bounded_weights, correct, passes, raw_weights, statistic
from algos.corrections.spec import Correction, Reject
from algos.diagnostics.mismatch import finish_mismatch, ratio_rows
from algos.masks import compared, outside
from algos.ratios import Ratio, bounded_exp


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
    seen: list[tuple[Part, Rows]] = []

    def observe(part: Part, ratio: Ratio, used: Tensor, weights: Tensor, kept: Tensor) -> None:
        rows = ratio_rows(ratio) | _did(ratio, weights, kept) | _statistics(ratio, *take(part, advantages), spec)
        seen.append((part, rows | (_weights(ratio, used, spec) if spec.weight.level else {})))

    inputs = {"logp_rollout": logp_rollout, "advantages": advantages, "segments": segments, "batch": batch}
    corrected = correct(log_ratio, mask, spec, **inputs, observe=observe)
    rows = gather(seen)
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
    return chunked(lambda m, w, k: _did(Ratio(w, m), w * m, k & m), mask, *corrected[:2])


def _did(ratio: Ratio, weights: Tensor, kept: Tensor) -> Rows:
    zero, left = compared(torch.eq, weights, 0.0), kept.view(torch.uint8).to(weights.dtype)
    return {
        "n": ratio.n,
        "weight": total(weights),
        "weight_sq": squares(weights),
        "zero": total(zero) - (weights.shape[1] - ratio.n),  # padding is 0 too
        "kept": total(left),
        "used": total(left) - torch.linalg.vecdot(zero, left),
    }


@torch.no_grad()
def finish_applied(rows: Rows) -> dict[str, Tensor]:
    """Mean and effective sample size of the final weights over tokens, and the shares that were kept.

    weight_ess = (Σw)²/(n·Σw²). rs_masked_fraction and rs_seq_masked_fraction are verl's: tokens rejected, and responses
    with a rejected token; kept_sequences are responses with a token left. used_length, dropped_length: mean length of responses
    with a token that is kept at a weight above 0, and of those without; NaN where there is none.
    """
    n, tokens = rows["n"], rows["n"].sum().clamp(min=1)
    used = rows["used"] > 0
    dropped = (n > 0) & ~used
    count = (n > 0).sum().clamp(min=1)
    total, squares = rows["weight"].sum(), rows["weight_sq"].sum()
    return {
        "correction/weight_mean": total / tokens,
        "correction/weight_ess": _share(total.square(), squares * tokens),
        "correction/weight_zero": rows["zero"].sum() / tokens,
        "correction/kept_tokens": rows["kept"].sum() / tokens,
        "correction/kept_sequences": (rows["kept"] > 0).double().sum() / count,
        "correction/used_length": (n * used).sum().double() / used.sum(),
        "correction/dropped_length": (n * dropped).sum().double() / dropped.sum(),
        "rollout_corr/rollout_rs_masked_fraction": (n - rows["kept"]).sum() / tokens,
        "rollout_corr/rollout_rs_seq_masked_fraction": (rows["kept"] < n).double().sum() / count,
    }


@torch.no_grad()
def weight_rows(log_ratio: Tensor, mask: Tensor, spec: Correction, segments: Tensor | None = None) -> Rows:
    """Per-response sums and extremes of the weight before (raw) and after (applied) its bounds, not normalised."""

    def rows(mask: Tensor, l: Tensor, segments: Tensor | None) -> Rows:
        ratio = Ratio(l, mask, segments=segments)
        return _weights(ratio, bounded_weights(raw_weights(ratio, spec.weight), spec.weight), spec)

    return chunked(rows, mask, log_ratio, segments, trim=segments is None)


def _weights(ratio: Ratio, used: Tensor, spec: Correction) -> Rows:
    raw, bounds, ends = raw_weights(ratio, spec.weight), thresholds(spec), None
    if spec.weight.level == "token":  # what `ratio_rows` needs too, and ends that a monotone bound keeps
        ends = tuple(bounded_exp(end) for end in ratio.ends)
        rows = _spread("raw", raw, ratio, 1.0, bounds=bounds, moments=ratio.excess_moments, ends=ends)
        monotone = spec.weight.action != "mask"
        ends = tuple(bounded_weights(end, spec.weight) for end in ends) if monotone else None
    else:
        rows = _spread("raw", raw, ratio, 1.0, bounds=bounds)
    return rows | _spread("applied", used, ratio, 1.0, ends=ends)


@torch.no_grad()
def finish_weights(rows: Rows, spec: Correction) -> dict[str, Tensor]:
    """verl's rollout_is_* statistics of the applied weight, and the same of the raw one under correction/raw_*.

    With E over tokens and w̄_i the mean weight of a response: mean = E[w], std, eff_sample_size = E[w]²/E[w²], max,
    min; ratio_fraction_high/low: share of tokens whose raw weight is beyond the bounds (lower = 1/upper where there is
    none); seq_{mean,std,max,min,max_deviation} of w̄_i (std with n − 1, deviation from 1), seq_fraction_high/low of its
    raw value; oob_ratio, with action=mask only: share of tokens whose weight became 0; batch_norm_factor, with
    normalize=batch at the levels of a token or a response: the mean that weights are divided by. verl takes max and min of
    sequence weights before the bounds; here raw is raw and applied is applied.
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
    if spec.normalize == "batch" and not spec.weight.level.startswith("segment"):
        out["rollout_corr/rollout_is_batch_norm_factor"] = used["mean" if spec.weight.level == "token" else "seq_mean"]
    return out


@torch.no_grad()
def filter_rows(
    log_ratio: Tensor,
    mask: Tensor,
    spec: Correction,
    *,
    logp_rollout: Tensor | None = None,
    segments: Tensor | None = None,
    advantages: Tensor | None = None,
) -> Rows:
    """Per-response sums and extremes of the statistic of each filter under `reject`; plug-ins have none."""

    def rows(mask: Tensor, l: Tensor, advantages: Tensor | None, *others: Tensor | None) -> Rows:
        return _statistics(Ratio(l, mask, *others), advantages, spec)

    return chunked(rows, mask, log_ratio, advantages, logp_rollout, segments, trim=segments is None)


def _statistics(ratio: Ratio, advantages: Tensor | None, spec: Correction) -> Rows:
    rows: Rows = {}
    for name, filter_ in _filters(spec).items():
        key = f"reject.{name}"
        rows |= _spread(key, statistic(ratio, filter_), ratio, _centre(filter_), bounds=_bounds(filter_))
        if filter_.when != "all":
            rows[f"{key}/masked"] = count(ratio.mask & ~passes(name, ratio, filter_, advantages))
        else:
            beyond_bounds = rows[f"{key}/low"] + rows[f"{key}/high"]
            veto = filter_.level == "worst_token"
            rows[f"{key}/masked"] = torch.where(beyond_bounds > 0, ratio.n, 0) if veto else beyond_bounds
    return rows


@torch.no_grad()
def finish_filters(rows: Rows, spec: Correction) -> dict[str, Tensor]:
    """verl's rollout_rs_<name>_* of each filter's statistic: ρ for statistic=ratio (verl's k1 filters report −log ρ).

    mean, std, max, min and fraction_high/low (share beyond the bounds, before `when` excuses any) over tokens;
    seq_{mean,std,max,min,max_deviation,fraction_high,fraction_low} over the responses' means. masked_fraction: share of tokens
    that this filter alone rejects; seq_masked_fraction: of responses with such a token.
    """
    filters = _filters(spec)
    spreads = _finish(rows, {f"reject.{name}": (*_bounds(filter_), _centre(filter_)) for name, filter_ in filters.items()})
    for key, spread in spreads.items():
        masked = rows[f"{key}/masked"]
        spread["masked_fraction"] = masked.sum() / rows[f"{key}/n"].sum().clamp(min=1)
        spread["seq_masked_fraction"] = over((masked > 0).double(), rows[f"{key}/n"] > 0)
    return {
        f"rollout_corr/rollout_rs_{name}_{statistic_}": value
        for name in filters
        for statistic_, value in spreads[f"reject.{name}"].items()
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


def _spread(
    name: str,
    values: Tensor,
    ratio: Ratio,
    centre: float,
    *,
    bounds: tuple[float, float] | None = None,
    moments: tuple[Tensor, Tensor] | None = None,
    ends: tuple[Tensor, Tensor] | None = None,
) -> Rows:
    """Sums and extremes over tokens; a value that a whole response shares, [B, 1], is counted instead of repeated.

    Off the mask values hold `centre`, their value for equal policies. Sums are of values − centre, so that small
    spreads survive the batch's own precision. `moments` and `ends`: what is known already. With `bounds`, how many
    values are beyond them.
    """
    rows = {"n": ratio.n}
    if moments is None:
        off = values - centre
        moments = total(off), squares(off)
    rows["off"], rows["off_sq"] = moments
    if bounds is not None:
        rows["low"], rows["high"] = beyond(torch.lt, values, bounds[0]), beyond(torch.gt, values, bounds[1])
    if values.shape[-1] == 1:  # what a whole response shares is counted, not repeated
        rows = {key: value * ratio.n if key != "n" else value for key, value in rows.items()}
        off_mask = outside(ratio.n > 0, values.dtype)[:, None]
    else:
        off_mask = ratio.outside
    rows["min"], rows["max"] = (lowest(values - off_mask), highest(values + off_mask)) if ends is None else ends
    return {f"{name}/{key}": value for key, value in rows.items()}


def _finish(rows: Rows, spreads: dict[str, tuple[float, float, float]]) -> dict[str, dict[str, Tensor]]:
    """Spread → its statistics; `spreads`: name → lower and upper bound and centre. All of them at once, [K, B]."""
    if not spreads:
        return {}
    known = {key: [rows[f"{name}/{key}"] for name in spreads] for key in ("n", "off", "off_sq", "min", "max")}
    own = {key: torch.stack(values) for key, values in known.items()}
    lower, upper, centre = torch.tensor(list(spreads.values()), dtype=torch.float64).to(own["n"].device).T[:, :, None]
    n, present = own["n"], own["n"] > 0
    tokens = n.sum(-1).clamp(min=1)
    off = own["off"].sum(-1) / tokens
    variance = (own["off_sq"].sum(-1) / tokens - off.square()).clamp(min=0)
    mean = centre[:, 0] + off
    row = centre + own["off"] / n.clamp(min=1)
    several = torch.stack([row, (row > upper).double(), (row < lower).double()])
    row_mean, high, low = over(several, present[0]).unbind()
    spread = torch.where(present, (row - row_mean[:, None]).square(), 0.0).sum(-1) / (present[0].sum() - 1).clamp(min=1)
    ends = extreme(torch.stack([own["max"], -own["min"], row, -row, (row - centre).abs()]), present[0])
    statistics = {
        "mean": mean,
        "std": variance.sqrt(),
        "eff_sample_size": _share(mean.square(), mean.square() + variance),
        "max": ends[0],
        "min": -ends[1],
        "seq_mean": row_mean,
        "seq_std": spread.sqrt(),
        "seq_max": ends[2],
        "seq_min": -ends[3],
        "seq_max_deviation": ends[4],
        "seq_fraction_high": high,
        "seq_fraction_low": low,
    }
    columns = {key: value.unbind() for key, value in statistics.items()}
    out = {name: {key: column[k] for key, column in columns.items()} for k, name in enumerate(spreads)}
    for k, name in enumerate(spreads):
        for side in ("high", "low"):
            if f"{name}/{side}" in rows:
                out[name][f"fraction_{side}"] = rows[f"{name}/{side}"].sum() / tokens[k]
    return out


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """part/whole, 0 where both are."""
    return torch.where(whole > 0, part / whole.clamp(min=1e-300), 0.0)
