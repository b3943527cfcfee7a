"""The batch of responses that every algorithm reads, from the rollout to the gradient."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """A batch of B responses of up to T tokens. Tensors are [B, T]; log-probabilities are those of the sampled tokens, in nats.

    logp_rollout: log μ of the policy that sampled, as the rollout engine reported it.
    mask: bool, True on response tokens. Elsewhere every other tensor may hold anything, NaN included.
    logp_old: log π_old of the trainer's policy when the batch was sampled. None when nothing reads it.
    advantages: the advantage A of each token. None when nothing reads them.
    segments: integers 0 ≤ id < T, the number of each token's turn in its response. None for a task without turns.
    logp_ref: log π_ref of the reference policy of a KL term. None without such a term.
    prompt: [B] integers, the number of the prompt that each response answers. None when neither a reduction nor a
        correction reads it.
    selected: bool, from `Objective.select`: the tokens that a loss such as clip_cov treats differently. None for other losses.
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
        """Return the batch of the responses at `index`, a tensor of response numbers or a slice of them."""
        return Batch._make(None if part is None else part[index] for part in self)

    def widened(self) -> Batch:
        """Return the batch with half-precision tensors converted to fp32, because no algorithm computes in half precision."""
        return Batch._make(part if part is None else at_least_fp32(part) for part in self)


def at_least_fp32(tensor: Tensor) -> Tensor:
    """Convert a half-precision tensor to fp32; return any other tensor unchanged."""
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() < 4 else tensor
