"""Description of the models that the embedded engine computes: Llama, Qwen2, Qwen3 and Qwen3-MoE.

All four are one decoder: RMS norms before attention and MLP, rotary positions, grouped queries, a SwiGLU or a mixture of several.
They differ in which matrices have a bias, and in whether queries and keys are normalised per head.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from harness.errors import UserError

MODELS = ("llama", "qwen2", "qwen3", "qwen3_moe")
FUSED = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""Modules whose weights an inference engine concatenates to one matrix in a decoder layer, by the name of that matrix."""
IN_ATTENTION = ("qkv", "o")
"""Names of the fused matrices of a layer whose MLP is a mixture of experts. The experts have matrices of their own."""
SCALED_ROPES = ("linear", "llama3", "yarn")
"""Supported scaled variants of rotary embedding. Their frequencies do not depend on the length of the sequence."""


class Architecture(NamedTuple):
    """Sizes and variants of a decoder model."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    """Constant added to the mean square in an RMS norm."""
    biased: frozenset[str]
    """Names of the fused matrices of a layer, such as qkv, that have a bias."""
    qk_norm: bool
    """Whether queries and keys are normalised per head."""
    tied: bool
    """Whether the output head is the embedding matrix."""
    frequencies: Tensor
    """Rotary frequencies [head_dim/2], in radians per position."""
    magnitude: float
    """Factor on queries and keys after their rotary embedding, as some scaled variants have it; 1 for the others."""
    experts: int
    """Number of experts in each layer's mixture; 0 for a dense model."""
    per_token: int
    """Number of experts that compute each token."""
    renormalise: bool
    """Whether the weights of a token's experts sum to 1."""

    def rotary(self, positions: int) -> tuple[Tensor, Tensor]:
        """Tables of rotary cosines and sines, [positions, 1, head_dim] in fp32. The first half of each sine row is negated."""
        angles = torch.arange(positions, dtype=torch.float32)[:, None, None] * self.frequencies
        cos, sin = angles.cos() * self.magnitude, angles.sin() * self.magnitude
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def architecture_of(config: PretrainedConfig) -> Architecture:
    """Read the architecture off a transformers config. Raises UserError, naming the alternatives, if it is not supported."""
    kind = config.model_type
    if kind not in MODELS:
        raise _refused(f"computes {', '.join(MODELS)}, not {kind}")
    if config.hidden_act != "silu":
        raise _refused(f"computes hidden_act=silu, not {config.hidden_act}")
    if other := set(getattr(config, "layer_types", None) or ()) - {"full_attention"}:
        raise _refused(f"computes full attention, not {', '.join(sorted(other))}")
    if kind == "qwen3_moe":
        _check_mixture(config)
    attention_bias, mlp_bias = getattr(config, "attention_bias", kind == "qwen2"), getattr(config, "mlp_bias", False)
    biased = {"qkv": attention_bias, "o": attention_bias and kind != "qwen2", "gate_up": mlp_bias, "down": mlp_bias}
    frequencies, magnitude = _frequencies(config)
    return Architecture(
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=_head_dim(config),
        eps=config.rms_norm_eps,
        biased=frozenset(key for key, has in biased.items() if has),
        qk_norm=kind in ("qwen3", "qwen3_moe"),
        tied=config.tie_word_embeddings,
        frequencies=frequencies,
        magnitude=magnitude,
        experts=expert_count(config),
        per_token=getattr(config, "num_experts_per_tok", 0),
        renormalise=getattr(config, "norm_topk_prob", False),
    )


def expert_count(config: PretrainedConfig) -> int:
    """Number of experts in each layer of a model; 0 for a dense one."""
    return getattr(config, "num_experts", None) or 0


def _check_mixture(config: PretrainedConfig) -> None:
    if config.mlp_only_layers or config.decoder_sparse_step != 1:
        raise _refused("computes mixtures with experts in every layer, so mlp_only_layers=[] and decoder_sparse_step=1")
    if config.sliding_window is not None:
        raise _refused(f"computes full attention, not sliding_window={config.sliding_window}")
    if config.num_experts_per_tok >= config.num_experts:
        raise _refused(
            f"routes to fewer experts than there are, not to num_experts_per_tok={config.num_experts_per_tok} "
            f"of num_experts={config.num_experts}"
        )


def _head_dim(config: PretrainedConfig) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _frequencies(config: PretrainedConfig) -> tuple[Tensor, float]:
    """Return (frequencies [head_dim/2] in radians per position, base^(−2i/head_dim) if unscaled; factor on rotary tables)."""
    rope = config.rope_parameters
    kind = rope.get("rope_type", "default")
    if kind == "default":
        dim = _head_dim(config)
        return rope["rope_theta"] ** -(torch.arange(0, dim, 2, dtype=torch.float32) / dim), 1.0
    if kind not in SCALED_ROPES:
        raise _refused(f"computes rotary embeddings of type default, {', '.join(SCALED_ROPES)}, not {kind}")
    return ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))


def _refused(why: str) -> UserError:
    return UserError(f"rollout.engine=local: {why}; use rollout/engine=vllm")
