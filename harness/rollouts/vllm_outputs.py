"""Conversion of vLLM's outputs to the tensors of a `Rollout`, a batch of responses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig

from harness.errors import UserError
from harness.rollouts.architecture import expert_count
from harness.rollouts.recorded import pack
from harness.rollouts.routes import Routes
from harness.tasks import PAD

LARGEST_TOP_K, TIES = 1000, 32
"""Maximum top_k with sampling masks. Number of tokens requested beyond top_k, because vLLM keeps all that tie with the last."""


def support(samples: list[Any], length: int, vocabulary: int, ranked: int) -> Tensor:
    """Masks [B, length, ⌈V/8⌉] of the tokens that top_p and top_k left, made from vLLM's report of the `ranked` most probable.

    vLLM reports log-probability −inf for an excluded token. Raises UserError if no reported token is excluded, because
    vLLM may then have left further tokens.
    """
    rows = []
    for sample in samples:
        left = torch.zeros(length, vocabulary, dtype=torch.bool)
        for place, entries in enumerate(sample.logprobs):
            finite = [token for token, entry in entries.items() if entry.logprob > -torch.inf]
            if len(finite) >= ranked < vocabulary:
                raise UserError(
                    f"rollout.replay_sampling_mask=true: {len(finite)} tokens of vLLM tie at rollout.top_k; lower it, or sample "
                    "in a wider rollout.precision"
                )
            left[place, finite] = True
        rows.append(pack(left))  # packed row by row: all rows unpacked would take too much memory
    return torch.stack(rows)


def expert_ids(samples: list[Any], prompts: Tensor, length: int, shape: PretrainedConfig) -> Tensor:
    """Experts that vLLM chose for each token but the last, [B, P + T − 1, layers, k]. Raises RuntimeError on other shapes."""
    width = prompts.shape[1]
    ids = Routes.unrouted(
        len(samples), width + length - 1, shape.num_hidden_layers, shape.num_experts_per_tok, expert_count(shape), prompts.device
    ).ids
    for row, (sample, padding) in enumerate(zip(samples, (prompts == PAD).sum(1).tolist(), strict=True)):
        places = width - padding + len(sample.token_ids) - 1  # all but the last token
        experts = torch.as_tensor(sample.routed_experts)
        if experts.shape[1:] != ids.shape[2:] or len(experts) < places:
            raise RuntimeError(f"vLLM reported experts of {list(experts.shape)}, not of {places} tokens x {list(ids.shape[2:])}")
        ids[row, padding : padding + places] = experts[:places].to(ids)
    return ids
