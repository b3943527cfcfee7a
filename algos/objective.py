"""The objective of a mini-batch, made of a loss, its anchor policy, a mismatch correction and a reduction to a scalar."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from algos.batch import Batch, at_least_fp32
from algos.corrections.apply import Corrected
from algos.corrections.spec import Correction
from algos.losses import TokenLoss
from algos.reductions import Counts, reduce


class Objective(NamedTuple):
    """The scalar that a training step differentiates, over the tokens that the correction keeps.

    reduce(w · loss(π_θ, π_prox, A)) + kl_coef · reduce(KL(π_θ, π_ref)) − entropy_coeff · reduce(H(π_θ))

    loss: a function of `algos.losses` with its parameters bound by functools.partial. correction: gives the weights w and the
    kept tokens. proximal: the policy π_prox that anchors the loss, `old` for π_old or `rollout` for the sampling policy μ.
    reduction, norm: mode and norm of `reductions.reduce`. kl: an estimator of `algos.kl`, or None; kl_coef ≥ 0 multiplies it.
    entropy_coeff: coefficient ≥ 0 of the entropy H. The KL term and the entropy are not weighted by w.
    """

    loss: Callable[..., TokenLoss]
    correction: Correction
    proximal: str
    reduction: str
    norm: int | None = None
    kl: Callable[..., Tensor] | None = None
    kl_coef: float = 0.0
    entropy_coeff: float = 0.0

    @property
    def anchored(self) -> bool:
        """Whether the loss or the KL term reads log π_prox. A function without the attribute `anchored` is assumed to read it."""
        return any(getattr(part, "anchored", True) for part in (self._function, self.kl) if part is not None)

    @property
    def reads_old(self) -> bool:
        """Whether the loss, the KL term or the correction reads log π_old; if not, a run may skip the forward pass for it."""
        return (self.proximal == "old" and self.anchored) or (self.correction.active and self.correction.ratio == "old")

    def select(self, batch: Batch, counted: Tensor) -> Batch:
        """Set `selected` to the tokens of `counted` [B, T] that a loss such as clip_cov picks. Other losses change nothing."""
        select = getattr(self._function, "select", None)
        if select is None:
            return batch
        params = getattr(self.loss, "keywords", {})
        return batch._replace(selected=select(self._anchor(batch), batch.advantages, counted, **params))

    def __call__(
        self, logp: Tensor, batch: Batch, corrected: Corrected, counts: Counts, entropy: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar loss of some responses of a mini-batch, differentiable by log π_θ = `logp` [B, T], and its metrics.

        corrected: the correction of these responses. The loss takes means and products of a response over its `counted` tokens.
        counts: `Counts` of the counted tokens of the whole mini-batch, so that losses of its parts add up to its loss.
        entropy: H of π_θ at each token [B, T] in nats, with its gradient; read by an entropy bonus only.

        Metrics are fp64 scalars by name: sums over kept tokens, divided by the number of counted tokens. actor/clip_share: tokens
        at a bound of the loss, if it has one. actor/pg_clipfrac_lower: tokens at the loss's dual clip or cap. actor/ppo_kl:
        log π_prox − log π_θ, if the loss reads π_prox. actor/kl: the value of the KL estimator, if there is a KL term.

        Raises ValueError when `selected`, `logp_ref` or `entropy` is missing where a selecting loss, a KL term or an entropy
        bonus reads it.
        """
        batch, logp = batch.widened(), at_least_fp32(logp)
        anchor, (weights, kept, counted) = self._anchor(batch), corrected
        token = self.loss(logp, anchor, batch.advantages, counted, *self._selected(batch))
        loss = reduce(token.loss * weights, corrected, counts, self.reduction, self.norm)
        sums = {}
        if token.clipped is not None:
            sums["actor/clip_share"] = (token.clipped & kept).sum()
        if token.capped is not None:
            sums["actor/pg_clipfrac_lower"] = (token.capped & kept).sum()
        if anchor is not None and getattr(self._function, "anchored", True):
            sums["actor/ppo_kl"] = torch.where(kept, anchor - logp.detach(), 0.0).sum(-1).sum(dtype=torch.float64)
        if self.kl is not None:
            if batch.logp_ref is None:
                raise ValueError("a KL term needs logp_ref, the reference policy's log-probabilities")
            divergence = self.kl(logp, batch.logp_ref, batch.mask, anchor)
            loss = loss + self.kl_coef * reduce(divergence, corrected, counts, self.reduction, self.norm)
            sums["actor/kl"] = torch.where(kept, divergence.detach(), 0.0).sum(dtype=torch.float64)
        if self.entropy_coeff:
            if entropy is None:
                raise ValueError("an entropy bonus needs the entropy of π_θ at each token")
            loss = loss - self.entropy_coeff * reduce(entropy, corrected, counts, self.reduction, self.norm)
        return loss, {name: value.double() / counts.tokens.clamp(min=1) for name, value in sums.items()}

    @property
    def _function(self) -> Callable[..., TokenLoss]:
        """The loss function without its bound parameters. Its attributes say whether it reads π_prox and selects tokens."""
        return getattr(self.loss, "func", self.loss)

    def _anchor(self, batch: Batch) -> Tensor | None:
        return batch.logp_rollout if self.proximal == "rollout" else batch.logp_old

    def _selected(self, batch: Batch) -> tuple[Tensor, ...]:
        """The fifth argument of a loss that selects tokens, in a tuple; an empty tuple for any other loss."""
        if getattr(self._function, "select", None) is None:
            return ()
        if batch.selected is None:
            raise ValueError("this loss selects tokens: pass it the rows of Objective.select on the whole mini-batch")
        return (batch.selected,)
