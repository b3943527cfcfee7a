"""The signature, the masking and the parameter check that all losses share.

Signature: `(logp, logp_prox, advantages, mask, **params) -> TokenLoss`, each tensor [B, T].
logp: log π_θ in nats, the only tensor that carries a gradient. logp_prox: log-probabilities of the anchor, π_old or μ, in nats;
None for a loss that does not read it. mask: bool, True on response tokens. params: the keys of the loss's config, keyword-only
without defaults, with types as in `algos.parameters`. The token loss is multiplied by a correction's weights, and
`reductions.reduce` makes it a scalar.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algos.parameters import check_values


class TokenLoss(NamedTuple):
    """The loss of each token, and the tokens on which a bound of the loss acts.

    loss: [B, T], 0 off the mask. clipped: [B, T] bool, where a bound of the loss is active; None for a loss without bounds.
    capped: [B, T] bool, where that bound is the dual clip or dppo's cap; None for a loss without these.
    """

    loss: Tensor
    clipped: Tensor | None = None
    capped: Tensor | None = None


def loss(*, anchored: bool, select: Callable[..., Tensor] | None = None) -> Callable:
    """Return a decorator that turns a function, written as the equation of a loss, into a loss with masking and checks.

    The function receives tensors of one dtype, the widest of the log-probabilities and at least fp32. They are 0 off the mask,
    whatever padding held (NaN included), and only `logp` has a gradient. The result is masked again.
    anchored: whether the function reads `logp_prox`. If not, a run may skip the forward pass that computes it.
    select: `(logp_prox, advantages, mask, **params) -> [B, T] bool`, for a loss that treats some tokens of the whole mini-batch
    differently. The loss takes this selection as its fifth argument; if it is not given, the loss selects among its own tokens.
    The loss raises ValueError on a missing `logp_prox` or a parameter of the wrong type, AssertionError on wrong shapes.
    """

    def mark(function: Callable) -> Callable:
        @functools.wraps(function)
        def masked(logp, logp_prox, advantages, mask, *selected, **params) -> TokenLoss:
            check_values("loss", function, params)
            logp, logp_prox, advantages = _prepared(logp, logp_prox if anchored else None, advantages, mask)
            if anchored and logp_prox is None:
                raise ValueError(f"loss={function.__name__} is anchored: it needs logp_prox, π_old or μ")
            if select is not None and (not selected or selected[0] is None):
                selected = (select(logp_prox, advantages, mask, **params),)
            value, *flags = function(logp, logp_prox, advantages, mask, *selected, **params)
            return TokenLoss(torch.where(mask, value, 0.0), *(None if flag is None else flag & mask for flag in flags))

        marked: Any = masked
        marked.anchored, marked.select = anchored, select
        return marked

    return mark


def _prepared(logp: Tensor, logp_prox: Tensor | None, advantages: Tensor, mask: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return the inputs in one dtype, detached but for logp, and 0 off the mask, because NaN·0 would be NaN there."""
    assert logp.ndim == 2 and mask.dtype == torch.bool, (logp.shape, mask.dtype)
    assert logp.shape == advantages.shape == mask.shape, (logp.shape, advantages.shape, mask.shape)
    dtype = torch.promote_types(logp.dtype, torch.float32)
    if logp_prox is not None:
        assert logp_prox.shape == logp.shape, (logp_prox.shape, logp.shape)
        dtype = torch.promote_types(dtype, logp_prox.dtype)
        logp_prox = torch.where(mask, logp_prox.detach().to(dtype), 0.0)
    return torch.where(mask, logp.to(dtype), 0.0), logp_prox, torch.where(mask, advantages.detach().to(dtype), 0.0)
