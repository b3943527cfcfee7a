"""`warmstart`: how a model with random weights learns the task before RL."""

from __future__ import annotations

from pydantic import model_validator

from harness.config.base import Count, PositiveFraction, Probability, Seed, Strict


class WarmStartConfig(Strict):
    """Supervised training on demonstrations with errors, and the choice of prompts by their solve rate after it."""

    seed: Seed
    """Seed of the weights, the demonstrations and the choice of prompts."""
    steps: Count
    """Optimizer steps of the warm start."""
    batch: Count
    """Number of demonstrations in each optimizer step."""
    lr: PositiveFraction
    """Largest learning rate of the one-cycle schedule."""
    filter_samples: Count
    """Number of responses from which the solve rate of a prompt is estimated."""
    keep_low: Probability
    """Smallest solve rate of the prompts that are kept."""
    keep_high: Probability
    """Largest solve rate of the prompts that are kept."""

    @model_validator(mode="after")
    def _ordered(self) -> WarmStartConfig:
        if self.keep_low >= self.keep_high:
            raise ValueError(f"keep_low={self.keep_low} must be below keep_high={self.keep_high}, else no prompt is kept")
        return self
