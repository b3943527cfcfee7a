"""M2PO's second-moment mask of tokens: a plug-in filter rather than a `spec.Reject`, because its bound depends on the batch."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor

from algos.parameters import SMALL

SecondMoment = Annotated[
    float, Interval(ge=SMALL, le=1e6), "the largest mean of (log ρ)², positive, up to 1e6 (0.04 is the paper's)"
]


@torch.no_grad()
def m2po(log_ratio: Tensor, mask: Tensor, *, tau: SecondMoment) -> Tensor:
    """Keep the tokens with the smallest squared log ratios l², as many as have a mean l² of at most τ; [B, T] bool.

    keep = {t: l_t² ≤ c},  c = max{c: mean(l² | l² ≤ c) ≤ τ}

    where l = `log_ratio` = log π − log μ [B, T] in nats, τ = `tau` > 0 in nats², 0.04 in the paper. The mean is over the tokens
    of `mask`. Give the whole batch, because c depends on all its tokens. Source: arXiv 2510.01161 section 3.
    Limits: τ → ∞ keeps everything; l = 0 keeps everything; tokens of equal l² stay or go together.
    """
    moments = torch.where(mask, log_ratio.double().square(), torch.inf)
    ranked = moments.flatten().sort().values
    present = ranked.isfinite()
    means = ranked.where(present, 0.0).cumsum(0) / torch.arange(1, ranked.numel() + 1, device=ranked.device)
    # A run of equal moments is judged by its last member, whose mean includes all of them.
    fits = present & (means <= tau)
    last_of_run = torch.ones_like(fits)
    last_of_run[:-1] = ranked[1:] > ranked[:-1]
    cutoff = torch.where(fits & last_of_run, ranked, -1.0).amax() if ranked.numel() else moments.new_zeros(())
    return mask & (moments <= cutoff)
