"""Assembles a step's training batch, with its advantages, from responses and their log-probabilities."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from algos.batch import Batch
from algos.diagnostics.correction import correct_with_diagnostics
from harness.build import Plan
from harness.rollouts import Rollout
from harness.tasks import TurnTask
from harness.train.data.advantages import AdvantageEstimator, Values
from harness.train.data.batch import Scores, TrainingBatch
from harness.train.data.responses import Responses
from harness.train.data.rewards import RewardPenalty

Shaping = Callable[[Responses], tuple[Responses, dict[str, Tensor]]]
"""A function that changes the rewards of responses. It returns (responses with the new rewards, metrics of the change)."""


class Assembler:
    """Makes a step's training batch, with advantages, from responses. shaping: changes rewards first; None for no change."""

    def __init__(self, plan: Plan, critic: Values | None, shaping: Shaping | None = None):
        self.config, self.task, self.shaping = plan.config, plan.task, shaping
        self.penalty, self.estimate = RewardPenalty(plan.config), AdvantageEstimator(plan.advantage, critic)

    def __call__(self, responses: Responses, scores: Scores) -> tuple[TrainingBatch, dict[str, Tensor]]:
        """Return (a step's training batch with advantages, metrics of the reward shaping and of the KL penalty)."""
        rollout = responses.rollout
        shaped, metrics = (responses, {}) if self.shaping is None else self.shaping(responses)
        penalty, penalty_metrics = self.penalty(scores.old, scores.reference, rollout.mask)
        advantages, values, returns = self.estimate(shaped, penalty)
        batch = Batch(
            logp_rollout=rollout.logp,
            mask=rollout.mask,
            logp_old=scores.old,
            advantages=advantages,
            segments=self._segment_numbers(rollout),
            logp_ref=scores.reference,
            prompt=responses.prompt_numbers,
        )
        corrected = diagnostics = None
        if batch.logp_old is not None:
            corrected, diagnostics = correct_with_diagnostics(batch, self.config.correction)
        made = TrainingBatch(
            prompts=responses.prompts,
            tokens=rollout.tokens,
            forward_old=scores.forward,
            replay=scores.replay,
            batch=batch,
            values=values,
            returns=returns,
            corrected=corrected,
            diagnostics=diagnostics,
        )
        return made, metrics | penalty_metrics

    def _segment_numbers(self, rollout: Rollout) -> Tensor | None:
        """Segment number [B, T] of each token. segments=version: a stretch of one version; else a turn, None without turns."""
        if self.config.segments == "version":
            return torch.nn.functional.pad((rollout.version.diff(dim=1) != 0).cumsum(1), (1, 0))
        if not isinstance(self.task, TurnTask):
            return rollout.turns
        return torch.from_numpy(self.task.segments(rollout.tokens.cpu().numpy())).to(rollout.tokens.device)
