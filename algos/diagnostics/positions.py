"""Mismatch of trainer and sampler by a token's position in its response, and by the response's length."""

from __future__ import annotations

import torch
from torch import Tensor

from algos.batch import Batch
from algos.diagnostics.rows import Rows
from algos.ratios import Ratio

BINS = 16
"""Number of bins. Bin b holds positions (or lengths) 2ᵇ⁻¹ + 1 … 2ᵇ, counted from 1; the last also those beyond 2¹⁵ = 32768."""


def positions(batch: Batch, policy: Tensor | None = None) -> dict[str, Tensor]:
    """Mismatch of a whole batch by token position and by response length: fp64 scalars by name. policy: log π, None for π_old."""
    return finish_positions(position_rows(batch, policy))


@torch.no_grad()
def position_rows(batch: Batch, policy: Tensor | None = None) -> Rows:
    """Token count, Σ l and Σ k3 of each response per bin of positions, [B, BINS] fp64; l = log π − log μ and k3 = e^l − 1 − l."""
    mask, l = batch.mask, Ratio(batch, policy).l.double()
    bins = torch.where(mask, bin_of(mask.cumsum(-1)), 0)
    values = {"tokens": mask.double(), "l": l, "k3": torch.expm1(l) - l}
    zero = l.new_zeros(l.shape[0], BINS)
    return {name: zero.scatter_add(-1, bins, torch.where(mask, value, 0.0)) for name, value in values.items()}


@torch.no_grad()
def finish_positions(rows: Rows) -> dict[str, Tensor]:
    """K1 = E[log μ − log π] and K3 per bin of token positions, and K3 per bin of response lengths, in nats per token.

    A name ends with the last position or length of its bin. An empty bin gives NaN.
    """
    position, length = by_position(rows), by_length(rows)
    out = {}
    for b in range(BINS):
        for key in ("kl", "k3"):
            out[f"profile/{key}_to_position_{2**b}"] = torch.where(position["tokens"][b] > 0, position[key][b], torch.nan)
        out[f"profile/k3_to_length_{2**b}"] = torch.where(length["responses"][b] > 0, length["k3"][b], torch.nan)
    return out


@torch.no_grad()
def by_position(rows: Rows) -> dict[str, Tensor]:
    """Number of tokens, kl = E[log μ − log π] and k3 in nats of a batch per bin of positions, [BINS]; 0 in an empty bin."""
    tokens = rows["tokens"].sum(0)
    n = tokens.clamp(min=1)
    return {"tokens": tokens, "kl": -rows["l"].sum(0) / n, "k3": rows["k3"].sum(0) / n}


@torch.no_grad()
def by_length(rows: Rows) -> dict[str, Tensor]:
    """Number of responses, mean Σ(log π − log μ) of a response and mean k3 of a token, in nats, per bin of lengths, [BINS]."""
    length = rows["tokens"].sum(-1)
    bins, present = bin_of(length.clamp(min=1).long()), length > 0
    zero = length.new_zeros(BINS)

    def bin_sum(values: Tensor) -> Tensor:
        return zero.scatter_add(0, bins, torch.where(present, values, 0.0))

    responses, tokens = bin_sum(present.double()), bin_sum(length)
    return {
        "responses": responses,
        "log_ratio_sum": bin_sum(rows["l"].sum(-1)) / responses.clamp(min=1),
        "k3": bin_sum(rows["k3"].sum(-1)) / tokens.clamp(min=1),
    }


def bin_of(number: Tensor) -> Tensor:
    """The bin ⌈log₂ number⌉ of each number ≥ 1, at most BINS − 1; from a table, as a float log₂ is inexact near powers of 2."""
    powers = 2 ** torch.arange(BINS - 1, device=number.device)
    return torch.bucketize(number, powers)
