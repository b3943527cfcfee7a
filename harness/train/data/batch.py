"""What a collector hands on: the log-probabilities of a step's responses, and all that is learned from."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from algos.batch import Batch
from harness.rollouts.recorded import Recorded


class Scores(NamedTuple):
    """Log-probabilities [B, T] of the responses, in nats.

    old: log π_old; None with actor.scoring=none. forward: the same by the training forward, equal to `old` up to rounding; None
    where no later mini-batch needs it. reference: of the KL term's reference policy; None without a KL term. replay: what the
    mini-batches are to replay, experts and sampling masks; None for nothing.
    """

    old: Tensor | None
    forward: Tensor | None
    reference: Tensor | None
    replay: Recorded | None


class Collected(NamedTuple):
    """What is learned from: the `batch` of the algorithms, and what only the training forward reads.

    prompts: [B, P]. tokens: [B, T]. forward_old: see `Scores.forward`. replay: see `Scores.replay`.
    values, returns: see `Credit`.
    """

    prompts: Tensor
    tokens: Tensor
    forward_old: Tensor | None
    replay: Recorded | None
    batch: Batch
    values: Tensor | None = None
    returns: Tensor | None = None

    def rows(self, index: Tensor) -> Collected:
        """Some responses, by their numbers."""
        forward_old, values, returns = (
            None if part is None else part[index] for part in (self.forward_old, self.values, self.returns)
        )
        replay = None if self.replay is None else self.replay.of(index)
        batch = self.batch.rows(index)
        return Collected(self.prompts[index], self.tokens[index], forward_old, replay, batch, values, returns)
