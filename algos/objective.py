"""loss x proximal x correction x reduction, put together for one mini-batch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from algos.chunks import parts, put, take, total
from algos.corrections.apply import Corrected, WeightSum, correct, weight_sum
from algos.corrections.spec import Correction
from algos.diagnostics.correction import applied
from algos.losses import TokenLoss
from algos.masks import bits, only
from algos.ratios import log_ratio
from algos.reductions import Counts, reduce

__all__ = ["Objective", "applied"]


class _RowByRow(torch.autograd.Function):
    """Sums over responses of what `function` returns for a few of them; the first is differentiable by logp.

    Its gradient is taken along the way, so that no intermediate tensor of the whole batch is ever made: what remains of
    the forward pass is one tensor [B, T]. Differentiable once.
    """

    @staticmethod
    def forward(ctx, logp: Tensor, mask: Tensor, function: Callable, *tensors: Tensor | None):
        wanted, gradient, sums = ctx.needs_input_grad[0], None, None
        for part in parts(mask):
            rows, *others = take(part, logp.detach(), mask, *tensors)
            with torch.set_grad_enabled(wanted):
                found = function(rows.requires_grad_(wanted), *others)
            if wanted:
                gradient = put(part, torch.autograd.grad(found[0], rows)[0], gradient, logp)
            found = [None if value is None else value.detach() for value in found]
            sums = [None if a is None else a + b for a, b in zip(sums, found, strict=True)] if sums else found
        ctx.gradient = gradient
        ctx.mark_non_differentiable(*(total for total in sums[1:] if total is not None))
        return tuple(sums)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor, *_):
        gradient, ctx.gradient = ctx.gradient, None
        if gradient is None:
            raise RuntimeError("the objective's gradient was taken before: it is given away, not copied; compute the loss again")
        return gradient.mul_(grad), *[None] * (len(ctx.needs_input_grad) - 1)


class Objective(NamedTuple):
    """The scalar that a training step differentiates: reduce(w · loss(π_θ, π_prox, A)) over the kept tokens.

    loss: a function of `losses` with its parameters bound by functools.partial. proximal: `old` anchors it on π_old,
    `rollout` on μ. kl: an estimator of `kl`, added with kl_coef ≥ 0 over the same tokens, not weighted; None for none.
    """

    loss: Callable[..., TokenLoss]
    correction: Correction
    proximal: str
    reduction: str
    norm: int | None = None
    kl: Callable[..., Tensor] | None = None
    kl_coef: float = 0.0

    @property
    def anchored(self) -> bool:
        """Whether the loss or the KL term reads log π_prox; what does not say is taken to."""
        return any(getattr(part, "anchored", True) for part in (self._function, self.kl) if part is not None)

    @property
    def reads_old(self) -> bool:
        """Whether anything needs log π_old: if not, a run may do without that forward pass."""
        return (self.proximal == "old" and self.anchored) or (self.correction.active and self.correction.ratio == "old")

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
        logp_old: Tensor | None,
        logp_rollout: Tensor,
        advantages: Tensor,
        mask: Tensor,
        corrected: Corrected,
        counts: Counts,
        selected: Tensor | None = None,
        logp_ref: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar loss of some rows of a mini-batch (all tensors [B, T]) and its metrics.

        `counts` are these rows of those of `corrected.counted` over the whole mini-batch, so values and metrics add up
        over its parts: actor/clip_share, kept tokens at a bound of the loss (if it has one), actor/pg_clipfrac_lower,
        those at its dual clip, actor/ppo_kl = E[log π_prox − log π_θ] over kept tokens (if the loss is anchored), and
        actor/kl, the estimator's value, all over the counted tokens. logp_old may be None unless `reads_old`.
        `selected`: these rows of `select`; raises ValueError when a loss that selects does not get them, or without
        `logp_ref` when there is a KL term.
        """
        if selected is None and getattr(self._function, "select", None) is not None:
            raise ValueError("this loss selects tokens: pass it the rows of Objective.select on the whole mini-batch")
        if self.kl is not None and logp_ref is None:
            raise ValueError("a KL term needs logp_ref, the reference policy's log-probabilities")
        anchor = self._anchor(logp_old, logp_rollout)
        tensors = (anchor, advantages, corrected.weights, corrected.kept, corrected.counted, selected, logp_ref)
        tensors += (counts.prompt_tokens,)
        sums = _RowByRow.apply(logp, mask, functools.partial(self._rows, counts), *tensors)
        tokens, names = counts.tokens.clamp(min=1), ("clip_share", "pg_clipfrac_lower", "ppo_kl", "kl")
        metrics = {f"actor/{name}": total / tokens for name, total in zip(names, sums[1:], strict=True) if total is not None}
        return sums[0], metrics

    def _rows(self, counts: Counts, logp: Tensor, mask: Tensor, anchor: Tensor | None, advantages: Tensor, weights: Tensor,
              kept: Tensor, counted: Tensor, selected: Tensor | None, logp_ref: Tensor | None,
              prompt_tokens: Tensor | None) -> list[Tensor | None]:
        """Of a few responses: their part of the loss, and the sums over kept tokens that the metrics are made of."""
        counts, inside = counts._replace(prompt_tokens=prompt_tokens), bits(kept, logp.dtype)
        token = self.loss(logp, anchor, advantages, mask, *(() if selected is None else (selected,)))
        value = reduce(token.loss * weights, inside, counted, counts, self.reduction, norm=self.norm)
        sums = [None if flags is None else (flags & kept).count_nonzero().double() for flags in (token.clipped, token.capped)]
        anchored = getattr(self._function, "anchored", True)
        sums.append(total(only(anchor - logp.detach(), inside)).sum(dtype=torch.float64) if anchored else None)
        if self.kl is None:
            return [value, *sums, None]
        divergence = self.kl(logp, logp_ref, mask, anchor)
        value = value + self.kl_coef * reduce(divergence, inside, counted, counts, self.reduction, norm=self.norm)
        return [value, *sums, only(divergence.detach(), inside).sum(dtype=torch.float64)]

    @property
    def _function(self) -> Callable[..., TokenLoss]:
        """The loss without its parameters: it carries the attributes `anchored` and `select`."""
        return getattr(self.loss, "func", self.loss)

    def _anchor(self, logp_old: Tensor, logp_rollout: Tensor) -> Tensor:
        return logp_rollout if self.proximal == "rollout" else logp_old
