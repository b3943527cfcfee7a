"""The batch of responses that every algorithm reads, from the rollout to the gradient."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """B responses of up to T tokens. Tensors are [B, T] and log-probabilities are in nats, of the sampled tokens.

    logp_rollout: log μ, as the rollout engine reported it.
    mask: bool, True on response tokens. Elsewhere every other tensor may hold anything, NaN included.
    logp_old: log π_old, from the trainer when the batch was taken. None when nothing reads it.
    advantages: A. None when nothing reads them.
    segments: integers 0 ≤ id < T, the number of each token's turn in its response. None for a task without turns.
    logp_ref: log π_ref, the reference of a KL term. None without one.
    prompt: [B] integers, the number of the prompt that each response answers. None when neither a reduction nor a
        correction reads it.
    selected: bool, the tokens that `Objective.select` chose. None for a loss that selects none.
    """

    logp_rollout: Tensor
    mask: Tensor
    logp_old: Tensor | None = None
    advantages: Tensor | None = None
    segments: Tensor | None = None
    logp_ref: Tensor | None = None
    prompt: Tensor | None = None
    selected: Tensor | None = None

    def rows(self, index: Tensor | slice) -> Batch:
        """A batch of the responses that `index` selects, by their numbers or as a slice."""
        return Batch._make(None if part is None else part[index] for part in self)

    def widened(self) -> Batch:
        """The batch with its half-precision tensors converted to fp32. Every computing function calls it first."""
        return Batch._make(part if part is None else at_least_fp32(part) for part in self)


def at_least_fp32(tensor: Tensor) -> Tensor:
    """Convert a half-precision tensor to fp32; return any other tensor unchanged."""
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() < 4 else tensor
