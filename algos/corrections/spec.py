"""Corrections as plain data, without torch, so that a config is checked before anything heavy is imported.

A correction turns the mismatch ratio ρ = π/μ (trainer over rollout engine, per token) into a detached weight on the
loss and a smaller response mask. A published correction is a `Correction` with certain values; `apply.correct` computes it.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from algos.parameters import LARGE, SMALL

Level = Literal["token", "prefix", "sequence", "geometric", "segment", "segment_geometric", "group"]
"""Level of the ratio ρ = π/μ. token: of each token. prefix: product over the response up to and with the token. sequence:
product over the response. geometric: exp of the mean log ratio of the response. segment and segment_geometric: product and
geometric mean over each segment (turn) of the response. group, for weights only: GEPO's ratio, the geometric mean of π
over the response's tokens, divided by the expected geometric mean of μ among the responses to its prompt."""

Action = Literal["truncate", "clip", "mask"]
Statistic = Literal["ratio", "k2", "k3", "prob_diff", "mult_error", "binary_kl"]
RejectLevel = Literal["token", "prefix", "sequence", "geometric", "segment", "segment_geometric", "worst_token", "suffix"]
SUMS = ("prefix", "sequence", "segment")
"""Levels at which a filter's statistic is a sum over tokens, so that it grows with their number."""
When = Literal["all", "negative_advantage"]
RatioNumerator = Literal["old", "current"]
Proximal = Literal["old", "rollout"]
Normalize = Literal["none", "batch"]
Denominator = Literal["original", "kept"]


REDUCTIONS = (
    "token_mean",
    "token_sum",
    "seq_mean_token_mean",
    "seq_mean_token_sum",
    "seq_mean_token_sum_norm",
    "prompt_mean",
)
"""Ways to reduce token losses to a scalar; `reductions.reduce` gives the equations."""


@dataclass(frozen=True)
class Weight:
    """The weight w that a correction puts on token losses, computed from the mismatch ratio ρ = π/μ at `level`.

    truncate: w = min(ρ, upper).  clip: w = clamp(ρ, lower, upper).  mask: w = ρ·1{lower ≤ ρ ≤ upper}.

    level: None means no weight, w = 1. lower, upper: absolute ratios, inclusive; None is no bound. truncate needs an upper bound,
    where ∞ gives w = ρ. With action=mask, reductions still count a token out of bounds. apply=false computes the weight for its
    metrics alone. Raises ValueError when a bound is missing, has no effect or lies on the wrong side of 1, or when both bounds
    leave only ρ = 1.
    """

    level: Level | None = None
    """Level of the weight's ratio ρ, such as token (each token's) or sequence (product over the response). null: no weight."""
    action: Action = "truncate"
    """Treatment of a ratio out of bounds: truncate caps it at upper, clip moves it to the bound, mask gives weight 0."""
    lower: float | None = None
    """Lower bound of the ratio ρ, in [0, 1]. null: no bound; verl takes 1/upper then. In a config, `reciprocal` is 1/upper."""
    upper: float | None = None
    """Upper bound of the ratio ρ, ≥ 1. null: none."""
    apply: bool = True
    """false: compute the weight for its metrics only, and leave the loss unweighted."""

    def __post_init__(self) -> None:
        _check_choice("action", self.action, Action)
        if not isinstance(self.apply, bool):
            raise ValueError(f"apply={self.apply!r}: must be true or false")
        if self.level is None:
            if not self.apply:
                raise ValueError("apply=false has no effect while level is null; set level too")
            if self.action != "truncate":
                raise ValueError(f"action={self.action} has no effect while level is null; set level too")
            for key in ("lower", "upper"):
                if getattr(self, key) is not None:
                    raise ValueError(f"{key}={getattr(self, key)} has no effect while level is null; set level too")
            return
        _check_choice("level", self.level, Level)
        _check_ratios(self.lower, self.upper)
        if self.action != "truncate":
            if self.lower is None and self.upper is None:
                raise ValueError(f"lower and upper are both missing: action={self.action} would do nothing")
            _check_reached(self.lower, self.upper, 0, math.inf)
            return
        if self.lower is not None:
            raise ValueError(f"lower={self.lower} has no effect with action=truncate; use action=clip or mask")
        if self.upper is None:
            raise ValueError("upper is missing: action=truncate caps ρ at upper; give a ratio ≥ 1 (2 is common)")


@dataclass(frozen=True)
class Reject:
    """A filter of a correction: tokens with lower ≤ statistic ≤ upper are kept, and the others leave the response mask.

    statistic: `ratio` is ρ = π/μ at `level`, as in the k1 filters of other frameworks, with ratios as bounds. The others are per
    token: `k2` = ½(log ρ)² and `k3` = ρ − 1 − log ρ in nats, `prob_diff` = π − μ, `mult_error` = max(ρ, 1/ρ), `binary_kl` = the
    larger of the two KL divergences between (π, 1 − π) and (μ, 1 − μ), in nats.
    level: statistics other than `ratio` are summed at prefix, sequence and segment, and averaged at geometric and
    segment_geometric. worst_token keeps a response only if all its tokens pass (a veto). suffix keeps a token only if all tokens
    before it pass.
    lower, upper: inclusive bounds; those of `ratio` are absolute ratios around 1.
    when: negative_advantage lets the filter act only on tokens with advantage A < 0. With level=geometric and lower = e^−δ, δ in
    nats, this is the off-policy sequence mask of DeepSeek-V3.2 (arXiv 2512.02556).
    Raises ValueError when a bound is missing, has no effect or lies on the wrong side of the statistic's value for two equal
    policies.
    """

    level: RejectLevel
    """Level of the filter's statistic, such as token, sequence (over the response) or worst_token (its worst token)."""
    statistic: Statistic = "ratio"
    """Quantity compared with the bounds: the ratio ρ = π/μ at `level`, or a distance of π and μ taken per token."""
    lower: float | None = None
    """Lower bound of the statistic: a token or response below is rejected. null: none. In a config, `reciprocal` is 1/upper."""
    upper: float | None = None
    """Upper bound of the statistic: a token or response above is rejected. null: no bound."""
    when: When = "all"
    """The tokens that the filter acts on: all, or those with a negative advantage."""

    def __post_init__(self) -> None:
        _check_choice("level", self.level, RejectLevel)
        _check_choice("statistic", self.statistic, Statistic)
        _check_choice("when", self.when, When)
        _check_numbers(self.lower, self.upper)
        if self.lower is None and self.upper is None:
            raise ValueError("lower and upper are both missing: the filter would keep everything")
        if self.statistic == "ratio":
            _check_ratios(self.lower, self.upper)
            _check_reached(self.lower, self.upper, 0, math.inf)
        elif self.statistic == "prob_diff":
            if (self.lower or 0) > 0 or (self.upper or 0) < 0:
                raise ValueError(f"[{self.lower}, {self.upper}] must contain 0, the value of prob_diff when π = μ")
            most = math.inf if self.level in SUMS else 1
            _check_reached(self.lower, self.upper, -most, most)
            _check_apart(self.lower, self.upper)
        else:
            least = 1 if self.statistic == "mult_error" else 0
            least_of = f"{self.statistic} ≥ {least}, its value when π = μ"
            if self.lower is not None:
                raise ValueError(f"lower={self.lower} has no effect: {least_of}; use upper")
            if least and self.level in SUMS:
                raise ValueError(f"level={self.level} sums mult_error, so no bound fits all lengths; use a mean")
            if self.upper is not None and self.upper <= least:
                raise ValueError(f"upper={self.upper} rejects everything: {least_of}; give a bound above {least}")
            _check_reached(None, self.upper, least, math.inf)


@dataclass(frozen=True)
class Plugin:
    """A filter of tokens by a plug-in function, for conditions that no `Reject` can express."""

    function: str
    """Name of a filter in the registry `corrections`, or a path `package.module:attribute`."""
    params: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the filter function."""


@dataclass(frozen=True)
class Correction:
    """A correction of the mismatch between the trainer's policy (π_old or π_θ) and the sampler's μ: a weight and filters.

    The weight and every filter are computed on the original mask, so the order of the filters has no effect. Raises ValueError
    on a key without effect.
    """

    ratio: RatioNumerator = "old"
    """Policy π in the numerator of ρ = π/μ: π_old (old), or π_θ (current), detached."""
    weight: Weight = field(default_factory=Weight)
    """The weight that multiplies the token loss."""
    reject: dict[str, Reject | Plugin] = field(default_factory=dict)
    """Filters by a name of your choice, such as +correction.reject.veto={level: worst_token, lower: 1e-4}."""
    normalize: Normalize = "none"
    """batch: divide the weights by their mean over the global batch. none: use them as they are."""
    denominator: Denominator = "original"
    """The tokens of a response that count: all of them (original), or those that no filter rejects (kept). Reductions count these
    tokens, and gspo, gmpo, luspo, topr, vespo, clip_cov and kl_cov take their means, products and selections over them."""

    def __post_init__(self) -> None:
        for key, accepted in {"ratio": RatioNumerator, "normalize": Normalize, "denominator": Denominator}.items():
            _check_choice(key, getattr(self, key), accepted)
        if self.normalize == "batch" and not self.weighs:
            raise ValueError("normalize=batch has no effect while weight.level is null or weight.apply false; use none")
        if self.ratio == "current" and self.weight.level is None and not self.reject:
            raise ValueError("ratio=current has no effect without a weight or a filter; use old")
        if self.ratio == "current" and self.weight.level == "group":
            raise ValueError(
                "ratio=current with weight.level=group: it is taken in each mini-batch, where groups are not whole; use ratio=old"
            )
        if self.denominator == "kept" and not self.reject:
            raise ValueError("denominator=kept has no effect without a filter under reject; use original")

    @property
    def levels(self) -> dict[str, str]:
        """Level of the weight (if any) and of each filter but plug-ins, by config key, as in {"weight.level": "token"}."""
        weight = {"weight.level": self.weight.level} if self.weight.level else {}
        filters = {name: filter_ for name, filter_ in self.reject.items() if isinstance(filter_, Reject)}
        return weight | {f"reject.{name}.level": filter_.level for name, filter_ in filters.items()}

    @property
    def weighs(self) -> bool:
        """Whether the correction multiplies the loss by a weight. False without a weight, or with one for its metrics only."""
        return self.weight.level is not None and self.weight.apply

    @property
    def active(self) -> bool:
        """Whether the correction weights or rejects any token."""
        return self.weighs or bool(self.reject)


def check_combination(correction: Correction, proximal: str, anchored: bool) -> None:
    """Raise ValueError when part of π_θ/μ would count twice: in the loss's ratio π_θ/π_prox and in the correction's weight.

    anchored: whether the loss reads log π_prox. proximal: the policy that the loss is anchored on, `old` or `rollout`.
    """
    _check_choice("proximal", proximal, Proximal)
    if not anchored or not correction.weighs:
        return
    if proximal == "rollout":
        raise ValueError(
            f"proximal=rollout with correction.weight.level={correction.weight.level} counts the mismatch twice: the loss's "
            "ratio is already π_θ/μ; use proximal=old or correction.weight.level=null"
        )
    if correction.ratio == "current":
        raise ValueError(
            f"correction.ratio=current with correction.weight.level={correction.weight.level} counts the update twice: the "
            "loss's ratio holds π_θ too; use correction.ratio=old, or a loss that reads no anchor, as pg"
        )


def _check_choice(key: str, value: Any, choices: Any) -> None:
    if value not in get_args(choices):
        raise ValueError(f"{key}={value}: accepted are {', '.join(get_args(choices))}")


def _check_numbers(lower: float | None, upper: float | None) -> None:
    for key, value in {"lower": lower, "upper": upper}.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, numbers.Real) or math.isnan(value)):
            raise ValueError(f"{key}={value!r} is not a number; give one, or null for no bound")
        if value is not None and LARGE < abs(value) < math.inf:
            raise ValueError(f"{key}={value} is beyond every ratio: they are computed up to e²⁰; give at most 1e9")


def _check_ratios(lower: float | None, upper: float | None) -> None:
    _check_numbers(lower, upper)
    if upper is not None and upper < 1:
        raise ValueError(f"upper={upper} is below 1, the ratio of two equal policies; upper must be ≥ 1")
    if lower is not None and not 0 <= lower <= 1:
        raise ValueError(f"lower={lower} is outside [0, 1]; 1 is the ratio of two equal policies")
    if lower is not None and 0 < lower < SMALL:
        raise ValueError(f"lower={lower} is below every ratio: they are computed down to e⁻²⁰; give at least 1e-9")
    _check_apart(lower, upper)


def _check_apart(lower: float | None, upper: float | None) -> None:
    if lower is not None and lower == upper:
        raise ValueError(f"lower={lower} and upper={upper} leave nothing but π = μ; move them apart")


def _check_reached(lower: float | None, upper: float | None, least: float, most: float) -> None:
    """Raise ValueError on a bound (`lower`, `upper`) that excludes none of the values in [least, most]."""
    if lower is not None and lower <= least:
        raise ValueError(f"lower={lower} has no effect: no value lies beyond it; set it to null")
    if upper is not None and upper >= most:
        raise ValueError(f"upper={upper} has no effect: no value lies beyond it; set it to null")
