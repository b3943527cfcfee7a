"""`correction`, `reduce` and `kl`: what becomes of the token losses, and the KL term beside them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from algos.corrections.spec import REDUCTIONS, Correction
from harness.config.base import Count, Strict
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
    """A KL term of the loss: coef times the estimator."""

    name: str | None = None
    """The estimator of KL(π_θ‖π_ref), an entry of algos/kl.py. null: no such term."""
    coef: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """Weight of the term."""
    reference: Literal["start", "rollout"] = "start"
    """π_ref. start: the policy that the run started from. rollout: the one that sampled, as the engine reported it."""

    @model_validator(mode="after")
    def _both(self) -> KlConfig:
        if (self.name is None) != (self.coef == 0):
            raise ValueError(f"coef={self.coef} with name={self.name}: a KL term needs both an estimator and a positive coef")
        if self.name is None and self.reference != "start":
            raise ValueError(f"reference={self.reference} has no effect with name=null; choose an estimator, as kl=k2")
        return self
