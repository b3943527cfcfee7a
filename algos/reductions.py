"""Reduction of token losses to a scalar. Its denominators count the whole mini-batch, so splitting the batch changes nothing."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from algos.corrections.apply import Corrected
from algos.corrections.spec import REDUCTIONS
from algos.groups import consecutive


class Counts(NamedTuple):
    """Counts of tokens, responses and prompts in the whole mini-batch, over all ranks and micro-batches; losses divide by these.

    tokens, sequences, prompts: scalars. prompt_tokens [B]: for each response, the tokens of all responses to its prompt.
    """

    tokens: Tensor
    sequences: Tensor
    prompts: Tensor | None = None
    prompt_tokens: Tensor | None = None

    @classmethod
    def of(cls, mask: Tensor, prompt: Tensor | None = None) -> Counts:
        """Count the tokens of `mask` [B, T], the responses with a token and, given prompt numbers `prompt` [B], the prompts."""
        tokens = mask.sum(-1)
        counts = cls(tokens.sum(), (tokens > 0).sum())
        if prompt is None:
            return counts
        assert prompt.shape == mask.shape[:1], (prompt.shape, mask.shape)
        row = consecutive(prompt)
        of_prompt = torch.zeros_like(tokens).scatter_add(0, row, tokens)
        return counts._replace(prompts=(of_prompt > 0).sum(), prompt_tokens=of_prompt[row])

    def rows(self, index: Tensor | slice) -> Counts:
        """The counts of the whole mini-batch, but `prompt_tokens` of only the responses that `index` selects."""
        return self if self.prompt_tokens is None else self._replace(prompt_tokens=self.prompt_tokens[index])


def reduce(values: Tensor, corrected: Corrected, counts: Counts, mode: str, norm: int | None = None) -> Tensor:
    """Sum the `values` [B, T] of kept tokens, divided as `mode` says; a scalar that adds up over any split of the batch.

    token_mean: Σ_i S_i/tokens
    token_sum: Σ_i S_i
    seq_mean_token_mean: Σ_i (S_i/n_i)/sequences
    seq_mean_token_sum: Σ_i S_i/sequences
    seq_mean_token_sum_norm: Σ_i S_i/(sequences·norm)
    prompt_mean: Σ_p (Σ_{i of p} S_i/n_p)/prompts

    where S_i is the sum over the tokens of response i in `corrected.kept`, n_i the number of its tokens in `corrected.counted`,
    and n_p that of all responses to prompt p in the mini-batch. `counts` gives tokens, sequences, prompts and n_p; `norm` is in
    tokens (Dr. GRPO, arXiv 2503.20783, with the maximal length). prompt_mean is SkyRL's. A count of 0 divides as 1, so a batch
    with everything rejected gives 0 with gradient 0. Limit: prompt_mean of one prompt is token_mean. Raises ValueError on an
    unknown mode, a norm that is missing, unused or not positive, and prompt_mean with counts that lack prompts.
    """
    if mode not in REDUCTIONS:
        raise ValueError(f"reduce={mode}: accepted are {', '.join(REDUCTIONS)}")
    if (norm is None) == (mode == "seq_mean_token_sum_norm") or (norm is not None and norm <= 0):
        raise ValueError(f"reduce={mode} with norm={norm}: seq_mean_token_sum_norm needs norm > 0, in tokens; others none")
    rows = torch.where(corrected.kept, values, 0.0).sum(-1)
    tokens, sequences = counts.tokens.clamp(min=1), counts.sequences.clamp(min=1)
    if mode == "token_mean":
        return rows.sum() / tokens
    if mode == "token_sum":
        return rows.sum()
    if mode == "seq_mean_token_mean":
        return (rows / corrected.counted.sum(-1).clamp(min=1)).sum() / sequences
    if mode == "seq_mean_token_sum":
        return rows.sum() / sequences
    if mode == "prompt_mean":
        if counts.prompts is None or counts.prompt_tokens is None:
            raise ValueError("reduce=prompt_mean needs counts of prompts: give Counts.of the prompt of each row")
        return (rows / counts.prompt_tokens.clamp(min=1)).sum() / counts.prompts.clamp(min=1)
    assert norm is not None  # checked above
    return rows.sum() / (sequences * norm)
