"""Estimators of KL(π_θ‖π_ref) from tokens, as values and as losses: `(logp, logp_ref, mask, logp_prox) -> [B, T]`.

Each estimator is a function of x = log π_ref − log π_θ (`logp_ref` − `logp`, nats) and 0 off the mask. Only `logp` carries a
gradient. Only k3_unbiased reads `logp_prox` (log π_old or log μ). An estimator of the right value may have a wrong gradient.
With tokens from π_θ, E[∇k2] = ∇KL(π_θ‖π_ref), while E[∇k1] = 0 and E[∇k3] = ∇KL(π_ref‖π_θ), the reverse KL.
Source: Schulman, joschu.net/blog/kl-approx.html.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from algos.ratios import LOG_RATIO_BOUND, bounded_exp, log_ratio


def estimator(*, anchored: bool) -> Callable:
    """Return a decorator that marks a KL estimator. anchored: whether it reads `logp_prox`, which a run must then compute."""

    def mark(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        marked: Any = function
        marked.anchored = anchored
        return marked

    return mark


@estimator(anchored=False)
def k1(logp: Tensor, logp_ref: Tensor, mask: Tensor, logp_prox: Tensor | None = None) -> Tensor:
    """Unbiased KL estimator −x, x = log π_ref − log π_θ, [B, T] nats, 0 off `mask`. Gradient: ∇log π_θ, of mean 0 under π_θ."""
    return log_ratio(logp, logp_ref.detach(), mask)


@estimator(anchored=False)
def absolute(logp: Tensor, logp_ref: Tensor, mask: Tensor, logp_prox: Tensor | None = None) -> Tensor:
    """Penalty |x|, no KL estimator; x = log π_ref − log π_θ, [B, T] nats, 0 off `mask`. Gradient: −sign(x)·∇log π_θ."""
    return k1(logp, logp_ref, mask).abs()


@estimator(anchored=False)
def k2(logp: Tensor, logp_ref: Tensor, mask: Tensor, logp_prox: Tensor | None = None) -> Tensor:
    """Biased KL estimator x²/2, x = log π_ref − log π_θ, [B, T], 0 off `mask`. Gradient: −x·∇log π_θ, unbiased under π_θ."""
    return k1(logp, logp_ref, mask).square() / 2


@estimator(anchored=False)
def k3(logp: Tensor, logp_ref: Tensor, mask: Tensor, logp_prox: Tensor | None = None) -> Tensor:
    """Unbiased KL estimator k3 = eˣ − 1 − x, x = log π_ref − log π_θ, [B, T] nats, 0 off `mask`. Gradient: (1 − eˣ)·∇log π_θ.

    Above x = 20 both eˣ and x are bounded, so k3 stays at e²⁰ − 21 and its gradient is 0. With eˣ alone bounded, k3 would fall
    and become negative. Below x = −20 the gradient is ∇log π_θ. Source: arXiv 2402.03300 eq. 4 (GRPO's penalty).
    """
    x = -k1(logp, logp_ref, mask)
    return torch.expm1(x.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)) - x.clamp(max=LOG_RATIO_BOUND)


@estimator(anchored=False)
def k3_k2(logp: Tensor, logp_ref: Tensor, mask: Tensor, logp_prox: Tensor | None = None) -> Tensor:
    """KL estimator sg(k3) + k2 − sg(k2), [B, T] nats, sg = detach: value of `k3`, gradient of `k2` (verl's `low_var_kl+`)."""
    gradient = k2(logp, logp_ref, mask)
    return k3(logp, logp_ref, mask).detach() + gradient - gradient.detach()


@estimator(anchored=True)
def k3_unbiased(logp: Tensor, logp_ref: Tensor, mask: Tensor, logp_prox: Tensor | None = None) -> Tensor:
    """KL estimator r·k3, [B, T] nats, r = π_θ/π_prox with a gradient: value and gradient are unbiased for tokens from π_prox.

    Gradient: r·(k3 + 1 − eˣ)·∇log π_θ = −r·x·∇log π_θ, x = log π_ref − log π_θ. Source: DeepSeek-V3.2, arXiv 2512.02556 section
    3.1. Limit: at r = 1 it has the value of `k3` and the gradient of `k2`. Raises ValueError without `logp_prox`, log π_prox.
    """
    if logp_prox is None:
        raise ValueError("kl=k3_unbiased needs logp_prox, the policy that the tokens come from")
    return bounded_exp(log_ratio(logp, logp_prox.detach(), mask)) * k3(logp, logp_ref, mask)
