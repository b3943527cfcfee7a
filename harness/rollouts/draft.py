"""Speculative sampling from a draft whose distribution is not the one that the acceptance test believes.

A draft proposes a token x ~ q. It is accepted with probability min(1, p(x)/q̂(x)), and otherwise a token is drawn from the
residual r ∝ max(p − q̂, 0). p is the target's policy, and q̂ the draft's distribution as the test knows it. The probability
that the result is x is then

    μ'(x) = q(x)·min(1, p(x)/q̂(x)) + (1 − Σ_y q(y)·min(1, p(y)/q̂(y)))·r(x)

With q = q̂, μ' is p, whatever the draft: arXiv 2211.17192, theorem 1. Here q̂ is the target at DRAFT_TEMPERATURE, and q is
(1 − ε)·q̂ + ε/V, for V tokens and an error ε. The engine reports log p, as real ones do. So every ratio π/μ is what it would
be without the fault, although the tokens are not drawn from p. Source of the fault: transformers #47932.
"""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor

DraftError = Annotated[float, Interval(ge=0, le=1)]
DRAFT_TEMPERATURE = 2.0
"""Temperature of the draft relative to the target's in speculative sampling. Above 1, because a small model is less certain."""


def drawn_from(logp: Tensor, error: float) -> Tensor:
    """Probabilities μ' [N, V] of tokens drawn by speculative sampling from a target p; logp is log p, [N, V].

    error: share ε of the drafts that are drawn uniformly. The acceptance test does not know of them, so μ' ≠ p if ε > 0.
    """
    p, believed = logp.exp(), (logp / DRAFT_TEMPERATURE).softmax(-1)
    accepted = torch.where(believed > 0, (p / believed).clamp(max=1), 0.0)
    proposed = ((1 - error) * believed + error / logp.shape[-1]) * accepted
    residual = (p - believed).clamp(min=0)
    total = residual.sum(-1, keepdim=True)
    left = (1 - proposed.sum(-1, keepdim=True)).clamp(min=0)
    return torch.where(total > 0, proposed + left * residual / total, p)
