"""`model`: the architecture and sizes of the policy, or the pretrained model."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from harness.config.base import Strict, name_of

Width = Annotated[int, Field(gt=0, le=2**20)]


class SizesConfig(Strict):
    """Sizes of a model with random weights. The keys are those of transformers."""

    hidden_size: Width
    """Width of the residual stream."""
    num_hidden_layers: Annotated[int, Field(gt=0, le=1024)]
    """Number of transformer blocks."""
    num_attention_heads: Width
    """Query heads of a block, a multiple of num_key_value_heads."""
    num_key_value_heads: Width
    """Key and value heads of a block."""
    head_dim: Annotated[int, Field(gt=0, le=2**20, multiple_of=2)]
    """Width of an attention head."""

    @model_validator(mode="after")
    def _grouped(self) -> SizesConfig:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads} must be a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}"
            )
        return self

    @property
    def widths(self) -> dict[str, int]:
        """Input widths of the weight matrices of linear layers, by the config key, or product of keys, that sets each."""
        return {
            "hidden_size": self.hidden_size,
            "num_attention_heads x head_dim": self.num_attention_heads * self.head_dim,
        }


class ModelConfig(SizesConfig):
    """A dense Qwen3 with random weights, of the sizes given by its keys."""

    name: Literal["qwen3"]
    """Kind of model. qwen3: a dense Qwen3. qwen3_moe: a mixture of experts. hub: a pretrained model."""
    intermediate_size: Width
    """Width of the feed-forward layer."""

    @property
    def widths(self) -> dict[str, int]:
        return super().widths | {"intermediate_size": self.intermediate_size}


class MixtureConfig(SizesConfig):
    """A Qwen3-MoE with random weights. Every layer is a mixture of experts; no expert is shared by all tokens."""

    name: Literal["qwen3_moe"]
    """Kind of model. qwen3: a dense Qwen3. qwen3_moe: a mixture of experts. hub: a pretrained model."""
    num_experts: Annotated[int, Field(ge=2, le=2**14)]
    """Number of experts in each layer."""
    num_experts_per_tok: Annotated[int, Field(ge=1, le=2**14)]
    """Number of experts that the router picks for a token, below num_experts."""
    moe_intermediate_size: Width
    """Width of an expert."""
    norm_topk_prob: bool
    """Whether to scale the weights of a token's experts so that they sum to 1."""
    router_aux_loss_coef: Annotated[float, Field(ge=0, le=1e3)]
    """Coefficient of the load balancing loss in the warm start. RL has no such loss."""

    @model_validator(mode="after")
    def _routed(self) -> MixtureConfig:
        if self.num_experts_per_tok >= self.num_experts:
            raise ValueError(
                f"num_experts_per_tok={self.num_experts_per_tok} must be below num_experts={self.num_experts}: "
                "else there is nothing to route"
            )
        if self.num_experts_per_tok == 1 and self.norm_topk_prob:
            raise ValueError(
                "norm_topk_prob=true with num_experts_per_tok=1: every weight is 1, the router gets no gradient; set it to false"
            )
        return self

    @property
    def widths(self) -> dict[str, int]:
        return super().widths | {"moe_intermediate_size": self.moe_intermediate_size}


class HubConfig(Strict):
    """A pretrained causal language model with its tokenizer."""

    name: Literal["hub"]
    """Kind of model. qwen3: a dense Qwen3. qwen3_moe: a mixture of experts. hub: a pretrained model."""
    path: Annotated[str, Field(min_length=1)]
    """Name of the model on the Hugging Face hub, or a local folder."""


def _tag(value: Any) -> str:
    return {"hub": "<hub>", "qwen3_moe": "<qwen3_moe>"}.get(name_of(value) or "", "<qwen3>")


PolicyConfig = Annotated[
    Annotated[ModelConfig, Tag("<qwen3>")] | Annotated[MixtureConfig, Tag("<qwen3_moe>")] | Annotated[HubConfig, Tag("<hub>")],
    Discriminator(_tag),
]
"""Type of the section `model`. Its key `name` selects the class."""
