"""`correction`, `reduce`, `kl` and `overlong`: weights and reduction of the token losses, and terms of loss or reward."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from algos.corrections.spec import REDUCTIONS, Correction
from harness.config.base import Count, Positive, Strict
from harness.config.digest import section

RECIPROCAL = "reciprocal"
"""String that may replace the number of a correction's lower bound. It stands for 1/upper."""


def _with_numbers(value: Any) -> Any:
    """Replace each lower bound `reciprocal` of a correction by 1/upper. Raises ValueError on other strings and on booleans."""
    if not isinstance(value, dict):
        return value
    value = {key: dict(part) if key in ("weight", "reject") and isinstance(part, dict) else part for key, part in value.items()}
    filters = section(value, "reject")
    filters |= {name: dict(filter_) for name, filter_ in filters.items() if isinstance(filter_, dict)}
    for place, part in {"weight": section(value, "weight"), **{f"reject.{name}": part for name, part in filters.items()}}.items():
        if not isinstance(part, dict):
            continue
        if part.get("lower") == RECIPROCAL:
            part["lower"] = _reciprocal(place, part.get("upper"))
        for key, own in {"lower": f", or {RECIPROCAL} for 1/upper", "upper": ""}.items():
            if isinstance(part.get(key), bool | str):
                raise ValueError(f"{place}.{key}={part[key]!r}: must be a number, null for no bound{own}")
        if not isinstance(part.get("apply", True), bool):
            raise ValueError(f"{place}.apply={part['apply']!r}: must be true or false")
    return value


def _reciprocal(place: str, upper: Any) -> float:
    if isinstance(upper, bool) or not isinstance(upper, int | float) or not upper > 0:
        raise ValueError(f"{place}.lower={RECIPROCAL}: is 1/upper, and upper={upper} is no positive number; set {place}.upper")
    return 1 / upper


CorrectionConfig = Annotated[Correction, BeforeValidator(_with_numbers)]
"""Type of the section `correction`: an `algos.corrections.spec.Correction`."""


VALUE_OF_K3 = ("k3_k2", "k3_unbiased")
"""KL estimators of algos/kl.py that differ from k3 only in their gradient, so in a reward they equal k3."""


class ReduceConfig(Strict):
    """Reduction of the token losses to a scalar."""

    mode: Literal[REDUCTIONS]  # type: ignore[valid-type]  # the tuple is what algos reads
    """Name of the reduction. algos/reductions.py gives the equations."""
    norm: Count | None
    """Divisor of the reduction seq_mean_token_sum_norm: the maximum length, in tokens. null: for the other reductions."""

    @model_validator(mode="after")
    def _norm(self) -> ReduceConfig:
        needed = self.mode == "seq_mean_token_sum_norm"
        if needed and self.norm is None:
            raise ValueError("norm is missing: seq_mean_token_sum_norm divides by it; give the maximum length in tokens")
        if not needed and self.norm is not None:
            raise ValueError(f"norm={self.norm} has no effect with mode={self.mode}; use norm=null")
        return self


class KlConfig(Strict):
    """A KL term: coef times an estimator, in the loss at π_θ or as a penalty in the reward at π_old."""

    name: str | None = None
    """Estimator of KL(π_θ‖π_ref), a function of algos/kl.py. π_ref is the policy that the run started from. null: no KL term."""
    coef: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """Weight of the KL term. With kl.target it is the initial weight."""
    place: Literal["loss", "reward"] = "loss"
    """Place of the KL term. loss: in the loss. reward: subtracted from each token's reward, with the estimator at π_old."""
    target: Positive | None = None
    """Target of an adaptive coef for the KL in the reward, in nats per token. null: coef is fixed."""
    horizon: Count | None = None
    """Number of responses over which an adaptive kl.coef changes by at most a fifth. null: for a fixed coef."""

    @model_validator(mode="after")
    def _both(self) -> KlConfig:
        if (self.name is None) != (self.coef == 0):
            raise ValueError(f"coef={self.coef} with name={self.name}: a KL term needs both an estimator and a positive coef")
        if self.place == "reward":
            self._in_reward()
        elif self.target is not None or self.horizon is not None:
            raise ValueError("target and kl.horizon have no effect with place=loss; set kl.place=reward, or both to null")
        return self

    def _in_reward(self) -> None:
        if self.name is None:
            raise ValueError("place=reward has no effect with name=null; choose an estimator, as kl=k3")
        if self.name in VALUE_OF_K3:
            raise ValueError(f"name={self.name} differs from k3 in its gradient, which a reward has not; use kl=k3")
        if (self.target is None) != (self.horizon is None):
            raise ValueError(f"target={self.target} with horizon={self.horizon}: an adaptive coef needs both, a fixed one none")


class OverlongConfig(Strict):
    """DAPO's soft punishment of overlong responses in the reward (arXiv 2503.14476 eq. 13)."""

    buffer: Count | None = None
    """Number of tokens before task.answer_length over which the punishment grows from 0 to `penalty`. null: no punishment."""
    penalty: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Punishment of a response of task.answer_length tokens, subtracted from its reward."""

    @model_validator(mode="after")
    def _used(self) -> OverlongConfig:
        if self.buffer is None and self.penalty != 1.0:
            raise ValueError(f"penalty={self.penalty:g} has no effect with buffer=null; set overlong.buffer")
        return self
