"""The policy network: a transformers Qwen3 built from the run's config."""

from __future__ import annotations

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from harness.config import Model

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def device() -> torch.device:
    """Where this process computes: its GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def qwen3_config(model: Model, vocab_size: int, max_tokens: int) -> Qwen3Config:
    """The transformers config. The head is untied from the embedding: engines keep both at 16 bit or more."""
    return Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=model.hidden,
        intermediate_size=model.mlp,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        head_dim=model.head_dim,
        max_position_embeddings=max_tokens,
        tie_word_embeddings=False,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )


def build(config: Qwen3Config, seed: int) -> Qwen3ForCausalLM:
    """The model in fp32 with weights drawn from `seed`."""
    torch.manual_seed(seed)
    return Qwen3ForCausalLM._from_config(config, dtype=torch.float32, attn_implementation="sdpa")
