"""`model`: the policy."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from harness.config.base import Strict, name_of

Width = Annotated[int, Field(gt=0, le=2**20)]


class ModelConfig(Strict):
    """A Qwen3 of these sizes with random weights. The keys are those of transformers' Qwen3Config."""

    name: Literal["qwen3"]
    """The architecture; `hub` for a pretrained model."""
    hidden_size: Width
    """Width of the residual stream."""
    num_hidden_layers: Annotated[int, Field(gt=0, le=1024)]
    """Number of transformer blocks."""
    num_attention_heads: Width
    """Query heads of a block, a multiple of num_key_value_heads."""
    num_key_value_heads: Width
    """Key and value heads of a block."""
    head_dim: Annotated[int, Field(gt=0, le=2**20, multiple_of=2)]
    """Width of a head."""
    intermediate_size: Width
    """Width of the feed-forward layer."""

    @model_validator(mode="after")
    def _grouped(self) -> ModelConfig:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads} must be a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}"
            )
        return self

    @property
    def widths(self) -> dict[str, int]:
        """Lengths of the rows of its weight matrices, by key."""
        return {
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_attention_heads x head_dim": self.num_attention_heads * self.head_dim,
        }


class HubConfig(Strict):
    """A pretrained causal language model with its tokenizer."""

    name: Literal["hub"]
    """A pretrained model; `qwen3` for random weights."""
    path: Annotated[str, Field(min_length=1)]
    """Name on the Hugging Face hub, or a local folder."""


def _tag(value: Any) -> str:
    return "<hub>" if name_of(value) == "hub" else "<qwen3>"


PolicyConfig = Annotated[Annotated[ModelConfig, Tag("<qwen3>")] | Annotated[HubConfig, Tag("<hub>")], Discriminator(_tag)]
"""The section `model`, told apart by its name."""
