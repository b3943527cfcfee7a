"""diagnostics.changed_weights: the share of weights whose BF16 value an optimizer step changes.

An engine in BF16 or below sees no other change. A weight that no step changes keeps its rounding error, so the mismatch that
results from the error persists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from harness.models import device
from harness.train.ranks import join

if TYPE_CHECKING:
    from harness.train.options.observers import Finished


class ChangedWeights:
    """Counts the weights whose value, rounded to BF16, an optimizer step of the actor changes."""

    def __init__(self, optimizer: Optimizer):
        self.ranks = join()
        self.before: list[Tensor] = []
        self.counts = torch.zeros(2, dtype=torch.float64)  # of changed weights, and of all
        optimizer.register_step_pre_hook(self._note)
        optimizer.register_step_post_hook(self._count)

    def _note(self, optimizer: Optimizer, *_: Any) -> None:
        self.before = [weight.detach().bfloat16() for weight in _weights(optimizer)]

    def _count(self, optimizer: Optimizer, *_: Any) -> None:
        for old, new in zip(self.before, _weights(optimizer), strict=True):
            self.counts += torch.tensor([(old != new.bfloat16()).sum().item(), old.numel()])
        self.before = []

    def __call__(self, done: Finished) -> dict[str, float]:
        """Mean share of weights that an optimizer step changed, over ranks and steps since the last call; {} without steps."""
        changed, total = self.ranks.sum(self.counts.clone().to(device())).tolist()
        self.counts.zero_()
        return {"actor/changed_bf16": changed / total} if total else {}


def _weights(optimizer: Optimizer) -> list[Tensor]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]
