"""`correction`, `reduce`, `kl` and `overlong`: what becomes of the token losses, and what stands beside them or in the reward."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from algos.corrections.spec import REDUCTIONS, Correction
from harness.config.base import Count, Positive, Strict
from harness.config.digest import section


def _bounds_are_numbers(value: Any) -> Any:
    """Pydantic reads a dataclass leniently: it would take '2' and true for numbers."""
    filters = {f"reject.{name}": filter_ for name, filter_ in section(value, "reject").items()}
    for place, part in {"weight": section(value, "weight"), **filters}.items():
        for key in ("lower", "upper"):
            if isinstance(part, dict) and isinstance(part.get(key), bool | str):
                raise ValueError(f"{place}.{key}={part[key]!r}: input should be a number, or null for no bound")
    return value


CorrectionConfig = Annotated[Correction, BeforeValidator(_bounds_are_numbers)]
"""The section `correction`, an `algos.corrections.spec.Correction`."""


VALUE_OF_K3 = ("k3_k2", "k3_unbiased")
"""Estimators with the value of k3 at π_old."""


class ReduceConfig(Strict):
    """How token losses become a scalar."""

    mode: Literal[REDUCTIONS]  # type: ignore[valid-type]  # the tuple is what algos reads
    """The reduction; algos/reductions.py gives the equations."""
    norm: Count | None
    """Tokens, for seq_mean_token_sum_norm only: the maximum length."""

    @model_validator(mode="after")
    def _norm(self) -> ReduceConfig:
        needed = self.mode == "seq_mean_token_sum_norm"
        if needed and self.norm is None:
            raise ValueError("norm is missing: seq_mean_token_sum_norm divides by it; give the maximum length in tokens")
        if not needed and self.norm is not None:
            raise ValueError(f"norm={self.norm} has no effect with mode={self.mode}")
        return self


class KlConfig(Strict):
    """A KL term of the loss, coef times the estimator; or the same of π_old as a penalty in the reward."""

    name: str | None = None
    """The estimator of KL(π_θ‖π_ref), an entry of algos/kl.py. null: no such term."""
    coef: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """Weight of the term; with a target its weight at first."""
    reference: Literal["start", "rollout"] = "start"
    """π_ref. start: the policy that the run started from. rollout: the one that sampled, as the engine reported it."""
    place: Literal["loss", "reward"] = "loss"
    """loss: a term of the loss. reward: coef times the estimator of KL(π_old‖π_ref) is taken off the reward of each token."""
    target: Positive | None = None
    """Nats per token to which an adaptive coef steers the KL in the reward. null: coef is fixed."""
    horizon: Count | None = None
    """Responses over which an adaptive coef changes by at most a fifth. null: none, for a fixed coef."""

    @model_validator(mode="after")
    def _both(self) -> KlConfig:
        if (self.name is None) != (self.coef == 0):
            raise ValueError(f"coef={self.coef} with name={self.name}: a KL term needs both an estimator and a positive coef")
        if self.name is None and self.reference != "start":
            raise ValueError(f"reference={self.reference} has no effect with name=null; choose an estimator, as kl=k2")
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
    """A soft punishment of long responses in the reward, DAPO's (arXiv 2503.14476 eq. 13)."""

    buffer: Count | None = None
    """The last tokens of task.answer_length, over which the punishment grows from 0 to `penalty`. null: none."""
    penalty: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Taken off the reward of a response of task.answer_length tokens."""

    @model_validator(mode="after")
    def _used(self) -> OverlongConfig:
        if self.buffer is None and self.penalty != 1.0:
            raise ValueError(f"penalty={self.penalty:g} has no effect with buffer=null; set overlong.buffer")
        return self
