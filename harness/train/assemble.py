"""Responses and their log-probabilities -> the batch that is learned from, with its advantages."""

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
"""(responses with other rewards, metrics of the change)."""


class Assembler:
    """Makes the batch of a step from its responses, with advantages.

    shaping: plugged in by an option that changes the rewards; None leaves the task's.
    """

    def __init__(self, plan: Plan, critic: Values | None, shaping: Shaping | None = None):
        self.config, self.task, self.shaping = plan.config, plan.task, shaping
        self.penalty, self.estimate = RewardPenalty(plan.config), AdvantageEstimator(plan.advantage, critic)

    def __call__(self, responses: Responses, scores: Scores) -> tuple[TrainingBatch, dict[str, Tensor]]:
        """(the batch of a step with its advantages, the metrics of everything that changed the task's rewards)."""
        rollout = responses.rollout
        shaped, metrics = (responses, {}) if self.shaping is None else self.shaping(responses)
        penalty, of_penalty = self.penalty(scores.old, scores.reference, rollout.mask)
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
        forwards = responses.prompts, rollout.tokens, scores.forward, scores.replay
        made = TrainingBatch(*forwards, batch, values, returns, corrected, diagnostics)
        return made, metrics | of_penalty

    def _segment_numbers(self, rollout: Rollout) -> Tensor | None:
        """[B, T]: the number of each token's segment in its response; None for a task without turns.

        A segment is a turn, or with segments=version the run of tokens that one version of the weights sampled.
        """
        if self.config.segments == "version":
            return torch.nn.functional.pad((rollout.version.diff(dim=1) != 0).cumsum(1), (1, 0))
        if not isinstance(self.task, TurnTask):
            return rollout.turns
        return torch.from_numpy(self.task.segments(rollout.tokens.cpu().numpy())).to(rollout.tokens.device)
