"""What a correction is, as data: torch-free, so that a config is checked before anything heavy is imported.

A correction turns the mismatch ratio ρ = π/μ (trainer over rollout engine, per token) into a detached weight on the
loss and a smaller response mask. Everything published is a setting of `Correction`; `corrections.py` computes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Level = Literal["token", "sequence", "geometric"]
"""Where ρ is taken: each token; the product over the response; exp of the mean log ratio over the response."""


REDUCTIONS = ("token_mean", "token_sum", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm")
"""How token losses become a scalar; `reductions.reduce` gives the equations."""


@dataclass(frozen=True)
class Weight:
    """w = truncate: min(ρ, upper) | clip: clamp(ρ, lower, upper) | mask: ρ·1{lower ≤ ρ ≤ upper}, ρ taken at `level`.

    `level=None` means no weight (w = 1). Bounds are absolute ratios, inclusive. A token masked by `mask` gets weight 0
    and stays in the denominator. Raises ValueError when a bound is missing, has no effect or lies on the wrong side of 1.
    """

    level: Level | None = None
    action: Literal["truncate", "clip", "mask"] = "truncate"
    lower: float | None = None
    upper: float | None = None

    def __post_init__(self) -> None:
        if self.level is None:
            for key in ("lower", "upper"):
                if getattr(self, key) is not None:
                    raise ValueError(f"{key}={getattr(self, key)} has no effect while level is null; set level too")
            return
        _check_bounds(self.lower, self.upper)
        if self.action == "truncate" and self.lower is not None:
            raise ValueError(f"lower={self.lower} has no effect with action=truncate; use action=clip or mask")
        if self.action == "truncate" and self.upper is None:
            raise ValueError("upper is missing: action=truncate caps ρ at upper; give a ratio ≥ 1 (2 is common)")
        if self.action != "truncate" and self.lower is None and self.upper is None:
            raise ValueError(f"lower and upper are both missing: action={self.action} would do nothing")


@dataclass(frozen=True)
class Reject:
    """Keep where lower ≤ statistic ≤ upper; what is rejected leaves the response mask.

    statistic: `ratio` is ρ itself at `level`; `k2` = ½(log ρ)² and `k3` = ρ − 1 − log ρ per token (nats), summed at level
    sequence, averaged at geometric, the largest at worst_token; `prob_diff` = π − μ per token, likewise.
    level worst_token keeps a response only if all its tokens pass (a veto). `when=negative_advantage` lets the filter act
    on responses with A < 0 only. Bounds are inclusive; those of `ratio` are absolute ratios around 1.
    """

    level: Literal["token", "sequence", "geometric", "worst_token"]
    statistic: Literal["ratio", "k2", "k3", "prob_diff"] = "ratio"
    lower: float | None = None
    upper: float | None = None
    when: Literal["all", "negative_advantage"] = "all"

    def __post_init__(self) -> None:
        if self.lower is None and self.upper is None:
            raise ValueError("lower and upper are both missing: the filter would keep everything")
        if self.statistic == "ratio":
            _check_bounds(self.lower, self.upper)
        elif self.statistic in ("k2", "k3"):
            if self.lower is not None:
                raise ValueError(f"lower={self.lower} has no effect: {self.statistic} ≥ 0 is small when π = μ; use upper")
            if self.upper < 0:
                raise ValueError(f"upper={self.upper} rejects everything: {self.statistic} ≥ 0; give a positive bound")
        elif (self.lower or 0) > 0 or (self.upper or 0) < 0:
            raise ValueError(f"[{self.lower}, {self.upper}] must contain 0, the value of {self.statistic} when π = μ")


@dataclass(frozen=True)
class Correction:
    """One point of the algebra (DESIGN: three policies, one algebra).

    ratio: what stands over μ, `old` (π_old) or `current` (π_θ, detached). normalize=batch divides the weights by their mean at
    their own level over the whole batch. denominator: what the reduction divides by after a rejection, the `original`
    response tokens or the `kept` ones. Weight and filters are computed on the original mask, so filters commute.
    """

    ratio: Literal["old", "current"] = "old"
    weight: Weight = field(default_factory=Weight)
    reject: dict[str, Reject] = field(default_factory=dict)
    normalize: Literal["none", "batch"] = "none"
    denominator: Literal["original", "kept"] = "original"

    def __post_init__(self) -> None:
        if self.normalize == "batch" and self.weight.level is None:
            raise ValueError("normalize=batch has no effect while weight.level is null")
        if self.denominator == "kept" and not self.reject:
            raise ValueError("denominator=kept has no effect without a filter under reject")

    @property
    def active(self) -> bool:
        """Whether it changes anything."""
        return self.weight.level is not None or bool(self.reject)


def _check_bounds(lower: float | None, upper: float | None) -> None:
    if upper is not None and upper < 1:
        raise ValueError(f"upper={upper} is below 1, the ratio of two equal policies; upper must be ≥ 1")
    if lower is not None and not 0 <= lower <= 1:
        raise ValueError(f"lower={lower} is outside [0, 1]; 1 is the ratio of two equal policies")
