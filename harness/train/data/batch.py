"""Data of a training step: the log-probabilities of its responses, and the batch that actor and critic learn from."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from algos.batch import Batch
from algos.corrections.apply import Corrected
from algos.diagnostics.rows import Rows
from harness.rollouts.recorded import Recorded


class Scores(NamedTuple):
    """Log-probabilities [B, T] of a step's responses, in nats.

    old: log π_old, under the weights before the step; None with actor.scoring=none. forward: log π_old by the training forward,
    equal to `old` up to rounding; None if no later mini-batch needs it. reference: log π_ref of the KL term's reference policy;
    None without a KL term. replay: experts and sampling masks that the training passes reuse; None if there are none.
    """

    old: Tensor | None
    forward: Tensor | None
    reference: Tensor | None
    replay: Recorded | None


class TrainingBatch(NamedTuple):
    """Data of a training step: the `Batch` of the objective, and tensors that only the passes of actor and critic read.

    prompts: [B, P]. tokens: [B, T]. forward_old: log π_old [B, T] by the training forward. replay: experts and sampling
    masks to reuse. values, returns: the critic's V and its targets A + V, [B, T]. corrected: the correction by π_old/μ of the
    whole batch. diagnostics: numbers per response that describe this correction. The last two are None without a scored π_old.
    """

    prompts: Tensor
    tokens: Tensor
    forward_old: Tensor | None
    replay: Recorded | None
    batch: Batch
    values: Tensor | None = None
    returns: Tensor | None = None
    corrected: Corrected | None = None
    diagnostics: Rows | None = None

    def rows(self, index: Tensor) -> TrainingBatch:
        """The batch of the responses whose row numbers are in `index`, without `diagnostics`."""
        forward_old, values, returns = (
            None if part is None else part[index] for part in (self.forward_old, self.values, self.returns)
        )
        replay = None if self.replay is None else self.replay.of(index)
        corrected = None if self.corrected is None else self.corrected.rows(index)
        batch = self.batch.rows(index)
        return TrainingBatch(self.prompts[index], self.tokens[index], forward_old, replay, batch, values, returns, corrected)
