"""From token losses to the scalar that is differentiated; counts are global, so splitting a batch changes nothing."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from algos.spec import REDUCTIONS


class Counts(NamedTuple):
    """What an optimizer step is averaged over, counted on the whole mini-batch, all ranks and micro-batches."""

    tokens: Tensor
    sequences: Tensor

    @classmethod
    def of(cls, mask: Tensor) -> Counts:
        """tokens and sequences with at least one token in `mask` [B, T]."""
        return cls(mask.sum(), mask.any(-1).sum())


def reduce(
    values: Tensor, kept: Tensor, counted: Tensor, counts: Counts, mode: str, *, norm: int | None = None
) -> Tensor:
    """Σ over kept tokens divided as `mode` says; a scalar that adds up over any split of the batch.

    token_mean: Σ_i S_i/tokens
    token_sum: Σ_i S_i
    seq_mean_token_mean: Σ_i (S_i/n_i)/sequences
    seq_mean_token_sum: Σ_i S_i/sequences
    seq_mean_token_sum_norm: Σ_i S_i/(sequences·norm)

    where S_i = Σ_t `values`[i, t] over `kept`, n_i = tokens of row i in `counted`, tokens and sequences = `counts`,
    `norm` in tokens (Dr. GRPO, arXiv 2503.20783, with the maximal length). A zero count divides by 1, so a batch with
    everything rejected gives 0 with gradient 0, not NaN. Raises ValueError on an unknown mode, or norm missing, unused
    or not positive.
    """
    if mode not in REDUCTIONS:
        raise ValueError(f"reduce={mode}: accepted are {', '.join(REDUCTIONS)}")
    if (norm is None) == (mode == "seq_mean_token_sum_norm") or (norm is not None and norm <= 0):
        raise ValueError(
            f"reduce={mode} with norm={norm}: seq_mean_token_sum_norm needs norm > 0, in tokens; others none"
        )
    rows = values.where(kept, 0.0).sum(-1)
    tokens, sequences = counts.tokens.clamp(min=1), counts.sequences.clamp(min=1)
    if mode == "token_mean":
        return rows.sum() / tokens
    if mode == "token_sum":
        return rows.sum()
    if mode == "seq_mean_token_mean":
        return (rows / counted.sum(-1).clamp(min=1)).sum() / sequences
    if mode == "seq_mean_token_sum":
        return rows.sum() / sequences
    return rows.sum() / (sequences * norm)
