"""`evaluation`, `diagnostics` and `collapse`: measurements beside the training."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from harness.config.base import Count, Strict
from harness.config.rollout import PrecisionConfig
from harness.precisions import PROBED


class EvaluationConfig(Strict):
    """Held-out evaluation by prompts x samples responses, with the same random numbers each time."""

    every: Count
    """Steps between two evaluations."""
    prompts: Annotated[int, Field(ge=2, le=10**9)]  # the standard error is taken over prompts
    """Held-out prompts."""
    samples: Count
    """Responses to each prompt that is judged."""
    train_prompts: Annotated[int, Field(ge=0, le=10**9)] = 0
    """Training prompts that are judged too, as eval/train_reward: the first ones of the pool, with as many responses each."""
    probe: dict[Literal[PROBED], PrecisionConfig] = Field(default_factory=dict)  # type: ignore[valid-type]  # a tuple
    """Precisions whose mismatch is measured, by a name each. They do not sample for the training. See experiment=regime."""
    policy: Literal["own", "rollout", "both"] = "own"
    """Policy whose reward is eval/reward. own: the trainer's in its own dtype, by the local engine. rollout: the rollout
    engine's. both: own, and the engine's as eval/rollout_reward."""


class PersistenceConfig(Strict):
    """Persistence: how far the mismatch of the same responses lasts over 1, 5 and 20 syncs (harness/train/persistence.py)."""

    every: Annotated[int, Field(gt=20, le=10**9)] | None = None
    """Steps between two measurements of persistence, each of which has four syncs. null: never."""
    responses: Count = 16
    """Responses of a measurement of persistence, each to another held-out prompt."""


class DiagnosticsConfig(Strict):
    """Diagnostics that no detector reads."""

    every: Count | None = None
    """Steps between two records of filters, probabilities, profiles and routing. null: never."""

    persistence: PersistenceConfig = Field(default_factory=PersistenceConfig)

    def due(self, step: int) -> bool:
        """Whether the diagnostics of `step` are recorded."""
        return self.every is not None and step % self.every == 0


class CollapseConfig(Strict):
    """Detectors of collapses and warnings."""

    detectors: dict[str, dict[str, Any]]
    """Name of each detector, and its parameters; see harness/collapse/detectors.py."""
    stop: bool
    """End the run at the first collapse."""
