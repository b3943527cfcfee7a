"""`evaluation`, `diagnostics` and `collapse`: measurements beside the training."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from harness.config.base import Count, Strict
from harness.config.rollout import PrecisionConfig
from harness.precisions import PROBED


class EvaluationConfig(Strict):
    """Evaluation on held-out prompts, with `samples` responses each. Every evaluation uses the same random numbers."""

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
    """Precisions, by name, in which each evaluation also samples responses, to measure the mismatch with the trainer's policy.
    Nothing is trained on these responses. See experiment=regime."""
    policy: Literal["own", "rollout", "both"] = "own"
    """Policy whose held-out reward is eval/reward. own: the trainer's, sampled by the local engine in the trainer's precision.
    rollout: the rollout engine's. both: the trainer's, and the rollout engine's reward is eval/rollout_reward."""


class PersistenceConfig(Strict):
    """Persistence of the mismatch: correlation of the same tokens' log ratios before and after 1, 5 and 20 weight syncs."""

    every: Annotated[int, Field(gt=20, le=10**9)] | None = None
    """Steps from the start of one measurement of the mismatch's persistence to the next. Each takes 20 steps. null: never."""
    responses: Count = 16
    """Number of responses, to as many held-out prompts, that are scored again after 1, 5 and 20 syncs of the weights."""


class DiagnosticsConfig(Strict):
    """Diagnostics of the mismatch beyond the metrics of every step. Detectors of collapse=default read none of them."""

    every: Count | None = None
    """Steps between two records of the slower diagnostics: filter statistics, token probabilities, mismatch by position, routing
    and a diagnosis of faults. null: never."""

    persistence: PersistenceConfig = Field(default_factory=PersistenceConfig)

    changed_weights: bool = False
    """Record at each step the share of weights whose BF16 value an optimizer step changes."""

    def due(self, step: int) -> bool:
        """Whether the diagnostics of `step` are recorded."""
        return self.every is not None and step % self.every == 0


class CollapseConfig(Strict):
    """Detectors of collapses in training, of warnings before one, and of learning."""

    detectors: dict[str, dict[str, Any]]
    """Detectors by name, each with its parameters; see harness/collapse/detectors.py."""
    stop: bool
    """Whether the run ends at the first collapse."""
