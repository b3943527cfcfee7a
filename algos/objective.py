"""loss x proximal x correction x reduction, put together for one mini-batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from algos.corrections import Corrected, WeightSum, correct, weight_sum
from algos.effects import applied
from algos.losses import TokenLoss
from algos.ratios import log_ratio
from algos.reductions import Counts, reduce
from algos.spec import Correction

__all__ = ["Objective", "applied"]


class Objective(NamedTuple):
    """The scalar that a training step differentiates: reduce(w · loss(π_θ, π_prox, A)) over the kept tokens.

    loss: a function of `losses` with its parameters bound by functools.partial. proximal: `old` anchors it on π_old,
    `rollout` on μ.
    """

    loss: Callable[..., TokenLoss]
    correction: Correction
    proximal: str
    reduction: str
    norm: int | None = None

    def corrected(
        self,
        logp: Tensor,
        logp_rollout: Tensor,
        mask: Tensor,
        advantages: Tensor,
        *,
        segments: Tensor | None = None,
        batch: WeightSum | None = None,
    ) -> Corrected:
        """The correction of ρ = exp(logp − logp_rollout); `logp` is π_old or π_θ as `correction.ratio` says.

        segments and batch as in `corrections.correct`: pass the merged `weight_sum` when these are not all rows of the
        batch.
        """
        ratio = log_ratio(logp.detach(), logp_rollout, mask)
        return correct(
            ratio,
            mask,
            self.correction,
            advantages=advantages,
            logp_rollout=logp_rollout,
            segments=segments,
            batch=batch,
        )

    def weight_sum(
        self, logp: Tensor, logp_rollout: Tensor, mask: Tensor, segments: Tensor | None = None
    ) -> WeightSum | None:
        """What `corrected` must know of the other parts of the global batch; None unless normalize=batch."""
        if self.correction.normalize == "none":
            return None
        return weight_sum(log_ratio(logp.detach(), logp_rollout, mask), mask, self.correction, segments)

    def select(self, logp_old: Tensor, logp_rollout: Tensor, advantages: Tensor, mask: Tensor) -> Tensor | None:
        """The tokens a loss such as clip_cov treats differently, [B, T] bool, from the whole mini-batch; else None."""
        select = getattr(self._function, "select", None)
        if select is None:
            return None
        params = getattr(self.loss, "keywords", {})
        return select(self._anchor(logp_old, logp_rollout), advantages, mask, **params)

    def __call__(
        self,
        logp: Tensor,
        logp_old: Tensor,
        logp_rollout: Tensor,
        advantages: Tensor,
        mask: Tensor,
        corrected: Corrected,
        counts: Counts,
        selected: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar loss of some rows of a mini-batch (all tensors [B, T]) and its metrics.

        `counts` are those of `corrected.counted` over the whole mini-batch, so values and metrics add up over its
        parts: actor/clip_share, kept tokens at a bound of the loss (if it has one), and actor/ppo_kl = E[log π_prox −
        log π_θ] over kept tokens (if the loss is anchored), both over the counted tokens.
        `selected`: these rows of `select`; raises ValueError when a loss that selects does not get them.
        """
        anchor = self._anchor(logp_old, logp_rollout)
        extra = () if selected is None else (selected,)
        if not extra and getattr(self._function, "select", None) is not None:
            raise ValueError("this loss selects tokens: pass it the rows of Objective.select on the whole mini-batch")
        token = self.loss(logp, anchor, advantages, mask, *extra)
        weighted = token.loss * corrected.weights
        value = reduce(weighted, corrected.kept, corrected.counted, counts, self.reduction, norm=self.norm)
        metrics, tokens = {}, counts.tokens.clamp(min=1)
        if token.clipped is not None:
            metrics["actor/clip_share"] = (token.clipped & corrected.kept).sum().double() / tokens
        if getattr(self._function, "anchored", True):
            metrics["actor/ppo_kl"] = -log_ratio(logp.detach(), anchor, corrected.kept).double().sum() / tokens
        return value, metrics

    @property
    def _function(self) -> Callable[..., TokenLoss]:
        """The loss without its parameters: it carries the attributes `anchored` and `select`."""
        return getattr(self.loss, "func", self.loss)

    def _anchor(self, logp_old: Tensor, logp_rollout: Tensor) -> Tensor:
        return logp_rollout if self.proximal == "rollout" else logp_old
