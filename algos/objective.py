"""loss x proximal x correction x reduction, put together for one mini-batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from algos.corrections import Corrected, correct
from algos.losses import TokenLoss
from algos.ratios import log_ratio
from algos.reductions import Counts, reduce
from algos.spec import Correction


class Objective(NamedTuple):
    """The scalar that a training step differentiates: reduce(w · loss(π_θ, π_prox, A)) over the kept tokens.

    loss: a function of `losses.py` with its parameters bound. proximal: `old` anchors it on π_old, `rollout` on μ.
    """

    loss: Callable[..., TokenLoss]
    correction: Correction
    proximal: str
    reduction: str
    norm: int | None = None

    def corrected(self, logp: Tensor, logp_rollout: Tensor, mask: Tensor, advantages: Tensor) -> Corrected:
        """The correction of ρ = exp(logp − logp_rollout); `logp` is π_old or π_θ as `correction.ratio` says."""
        ratio = log_ratio(logp.detach(), logp_rollout, mask)
        return correct(ratio, mask, self.correction, advantages=advantages, logp_rollout=logp_rollout)

    def __call__(
        self,
        logp: Tensor,
        logp_old: Tensor,
        logp_rollout: Tensor,
        advantages: Tensor,
        mask: Tensor,
        corrected: Corrected,
        counts: Counts,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar loss of some rows of a mini-batch (all tensors [B, T]) and its metrics.

        `counts` are those of `corrected.counted` over the whole mini-batch, so values add up over its parts.
        """
        anchor = logp_rollout if self.proximal == "rollout" else logp_old
        token = self.loss(logp, anchor, advantages, mask)
        value = reduce(token.loss * corrected.weights, corrected.kept, corrected.counted, counts, self.reduction, norm=self.norm)
        metrics = {}
        if token.clipped is not None:
            metrics["actor/clip_share"] = (token.clipped & corrected.kept).sum() / corrected.kept.sum().clamp(min=1)
        return value, metrics


def applied(corrected: Corrected, mask: Tensor) -> dict[str, Tensor]:
    """What a correction did, beside the raw statistics of `diagnostics.mismatch`: mean weight and kept shares."""
    tokens, present = mask.sum().clamp(min=1), mask.any(-1)
    return {
        "correction/weight_mean": torch.where(mask, corrected.weights, 0.0).sum() / tokens,
        "correction/kept_tokens": corrected.kept.sum() / tokens,
        "correction/kept_sequences": corrected.kept.any(-1).sum() / present.sum().clamp(min=1),
        "correction/weight_zero": ((corrected.weights == 0) & mask).sum() / tokens,
    }
