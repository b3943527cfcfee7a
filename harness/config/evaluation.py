"""`evaluation`, `diagnostics` and `collapse`: what is measured beside the training."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from harness.config.base import Count, Strict
from harness.config.rollout import PrecisionConfig
from harness.precisions import PROBED


class EvaluationConfig(Strict):
    """Held-out evaluation: prompts x samples responses, the same random numbers each time."""

    every: Count
    """Steps between two evaluations."""
    prompts: Annotated[int, Field(ge=2, le=10**9)]  # the standard error is taken over prompts
    """Held-out prompts."""
    samples: Count
    """Responses to each prompt."""
    train_prompts: Annotated[int, Field(ge=0, le=10**9)] = 0
    """Training prompts that are judged too, as eval/train_reward: the first ones of the pool, with as many responses each."""
    probe: dict[Literal[PROBED], PrecisionConfig] = Field(default_factory=dict)  # type: ignore[valid-type]  # a tuple
    """Precisions whose mismatch is measured too, though they do not sample for the training; see experiment=regime."""
    policy: Literal["own", "rollout", "both"] = "own"
    """Whose reward is eval/reward. own: the trainer's policy in its own dtype, by the local engine. rollout: the policy of the
    rollout engine. both: own, and that of the rollout engine as eval/rollout_reward."""


class PersistenceConfig(Strict):
    """How long the mismatch of the same responses lasts, over 1, 5 and 20 syncs (harness/train/persistence.py)."""

    every: Annotated[int, Field(gt=20, le=10**9)] | None = None
    """Steps from one measurement to the next, each of four syncs. null: never."""
    responses: Count = 16
    """Responses of a measurement, one to each of so many held-out prompts."""


class DiagnosticsConfig(Strict):
    """The diagnostics that no detector of a collapse reads."""

    every: Count | None = None
    """Steps between two records of filters, probabilities, profiles and routing. null: never."""

    persistence: PersistenceConfig = Field(default_factory=PersistenceConfig)

    def due(self, step: int) -> bool:
        """Whether this step is recorded."""
        return self.every is not None and step % self.every == 0


class CollapseConfig(Strict):
    """What counts as a collapse, and what as a warning."""

    detectors: dict[str, dict[str, Any]]
    """Detectors by name with their parameters; see harness/collapse/detectors.py."""
    stop: bool
    """End the run at the first collapse."""
