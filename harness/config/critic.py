"""`critic`: training of the critic, whose values V the advantage estimator gae reads."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from harness.config.base import Positive, PositiveFraction, Strict


class CriticConfig(Strict):
    """Training of the critic, a copy of the policy with a value head that starts at 0. Other settings are those of `actor`."""

    lr: PositiveFraction | None = None
    """Learning rate of the critic, without a schedule. null: no critic."""
    cliprange_value: Positive | None = 0.5
    """Bound on the change of a value since its response was sampled, beyond which the value loss is clipped. null: no bound."""
    warmup_steps: Annotated[int, Field(ge=0, le=10**9)] = 0
    """RL steps at the beginning of a run in which only the critic learns."""

    @model_validator(mode="after")
    def _used(self) -> CriticConfig:
        for key, default in {"cliprange_value": 0.5, "warmup_steps": 0}.items():
            if self.lr is None and (value := getattr(self, key)) != default:
                raise ValueError(f"{key}={value} has no effect with critic.lr=null, as there is no critic; choose advantage=gae")
        return self
