"""`evaluation`, `diagnostics` and `collapse`: measurements beside the training."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from harness.config.base import Count, Strict
from harness.config.rollout import PrecisionConfig
from harness.precisions import PROBED


class EvaluationConfig(Strict):
    """Held-out evaluation by prompts x samples responses, with the same random numbers at each evaluation."""

    every: Count
    """Steps between two evaluations."""
    prompts: Annotated[int, Field(ge=2, le=10**9)]  # the standard error is taken over prompts
    """Number of held-out prompts in an evaluation."""
    samples: Count
    """Responses to each prompt of an evaluation."""
    train_prompts: Annotated[int, Field(ge=0, le=10**9)] = 0
    """Number of training prompts that are evaluated too, as eval/train_reward: the first ones of the training pool, with
    evaluation.samples responses each."""
    probe: dict[Literal[PROBED], PrecisionConfig] = Field(default_factory=dict)  # type: ignore[valid-type]  # a tuple
    """Precisions whose mismatch is measured at each evaluation, by name. Nothing is trained on their responses. See
    experiment=regime."""
    policy: Literal["own", "rollout", "both"] = "own"
    """Policy whose reward is eval/reward. own: the trainer's own, in its dtype, by the local engine. rollout: the rollout
    engine's. both: own, with the rollout engine's as eval/rollout_reward."""


class PersistenceConfig(Strict):
    """Persistence: correlation of the mismatch over 1, 5 and 20 syncs for the same responses (harness/train/persistence.py)."""

    every: Annotated[int, Field(gt=20, le=10**9)] | None = None
    """Steps from the start of one measurement of persistence to the next. Each ends 20 steps after its start. null: never."""
    responses: Count = 16
    """Responses to different held-out prompts that a measurement of persistence scores again after 1, 5 and 20 syncs."""


class DiagnosticsConfig(Strict):
    """Diagnostics of the mismatch beyond the metrics of every step. Detectors of collapse=default read none of them."""

    every: Count | None = None
    """Steps between two records of filter statistics, probabilities, mismatch by position, routing and a diagnosis of faults.
    null: never."""

    persistence: PersistenceConfig = Field(default_factory=PersistenceConfig)

    changed_weights: bool = False
    """Record at each step the share of weights whose BF16 value an optimizer step changes."""

    def due(self, step: int) -> bool:
        """Whether the diagnostics of `step` are recorded."""
        return self.every is not None and step % self.every == 0


class CollapseConfig(Strict):
    """Detectors of collapses in training, of warnings before one, and of learning."""

    detectors: dict[str, dict[str, Any]]
    """Name of each detector, and its parameters; see harness/collapse/detectors.py."""
    stop: bool
    """Whether the run ends at the first collapse."""
