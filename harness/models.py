"""Construction of the policy network: a Qwen3 of the sizes in the run's config, or a pretrained model of any architecture."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from harness.config import HubConfig, MixtureConfig, ModelConfig
from harness.errors import UserError, first_line
from harness.precisions import COMPUTE
from harness.tasks import Task, TokenTask

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, dtype.torch) for name, dtype in COMPUTE.items()}


def device() -> torch.device:
    """The torch device of this process: its GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def synchronize() -> None:
    """Wait until the GPU has finished the work of this thread, so that a clock read next includes that work."""
    if torch.cuda.is_available():
        torch.cuda.current_stream().synchronize()


def policy_config(model: ModelConfig | MixtureConfig | HubConfig, task: Task) -> PretrainedConfig:
    """The transformers config of the policy. Raises UserError if the policy has random weights and the task defines no tokens."""
    if isinstance(model, HubConfig):
        return hub_config(model)
    if not isinstance(task, TokenTask):
        raise UserError(f"model={model.name}: {type(task).__name__} lacks vocab_size or demonstrations; set model=hub")
    return qwen3_config(model, task.vocab_size, task.prompts().shape[1] + task.answer_length)


def qwen3_sizes(*, hidden: int, layers: int, heads: int, kv_heads: int, head: int, mlp: int) -> ModelConfig:
    """Return the config section `model` of a Qwen3 with these sizes."""
    attention = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head}
    return ModelConfig(name="qwen3", hidden_size=hidden, num_hidden_layers=layers, intermediate_size=mlp, **attention)


def qwen3_config(model: ModelConfig | MixtureConfig, vocab_size: int, max_tokens: int) -> Qwen3Config | Qwen3MoeConfig:
    """The transformers config of a Qwen3 with a context of `max_tokens`. Its output head is not tied to the embedding."""
    kind: type[Qwen3Config] | type[Qwen3MoeConfig] = Qwen3Config
    sizes: dict[str, Any] = model.model_dump(exclude={"name"})
    if isinstance(model, MixtureConfig):
        kind, sizes = Qwen3MoeConfig, sizes | {"mlp_only_layers": [], "decoder_sparse_step": 1}
    return kind(
        **sizes,
        vocab_size=vocab_size,
        max_position_embeddings=max_tokens,
        tie_word_embeddings=False,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )


def build(config: PretrainedConfig, seed: int) -> PreTrainedModel:
    """Build a Qwen3, dense or with a mixture of experts, in fp32 with weights drawn from `seed`."""
    torch.manual_seed(seed)
    if isinstance(config, Qwen3MoeConfig):
        # On a CPU a loop over the experts is as fast as the grouped product, and takes any width and fp64.
        experts = "grouped_mm" if torch.cuda.is_available() else "eager"
        return Qwen3MoeForCausalLM._from_config(
            config, dtype=torch.float32, attn_implementation="sdpa", experts_implementation=experts
        )
    return Qwen3ForCausalLM._from_config(config, dtype=torch.float32, attn_implementation="sdpa")


def hub_config(model: HubConfig) -> PretrainedConfig:
    """The transformers config of a pretrained model. Raises UserError if it cannot be loaded."""
    with _explained(model):
        return AutoConfig.from_pretrained(model.path, trust_remote_code=False)


def hub_model(model: HubConfig) -> PreTrainedModel:
    """Load a pretrained model in fp32 from safetensors, which execute no code. Raises UserError if it cannot be loaded."""
    with _explained(model):
        return AutoModelForCausalLM.from_pretrained(
            model.path, dtype=torch.float32, attn_implementation="sdpa", use_safetensors=True, trust_remote_code=False
        )


def hub_tokenizer(model: HubConfig) -> PreTrainedTokenizerBase:
    """The tokenizer of a pretrained model. Raises UserError if it cannot be loaded."""
    with _explained(model):
        return AutoTokenizer.from_pretrained(model.path, trust_remote_code=False)


MADE = Path("models")
"""Folder in which `make llm` puts models. No model on the Hugging Face hub has a name that begins with it."""


@contextmanager
def _explained(model: HubConfig) -> Iterator[None]:
    if MADE in (path := Path(model.path)).parents and not path.exists():
        raise UserError(f"model.path={model.path}: there is no such folder here; `make llm` makes models/smollm2")
    try:
        yield
    except (OSError, ValueError) as error:
        why = first_line(error)
        raise UserError(f"model.path={model.path}: cannot be loaded ({why}); give a hub name or a local folder") from None
