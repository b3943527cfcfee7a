"""`task`: prompts, and the reward of a response."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from harness.config.base import Count, PluginConfig, Probability, Strict, name_of


class ChainConfig(Strict):
    """The chain task, see harness/tasks/chain.py."""

    name: Literal["chain"]
    """The task."""
    length: Annotated[int, Field(gt=0, le=10**6)]
    """Values in the answer."""
    choices: Count
    """Valid moves at each step. Above 1 a solved policy keeps entropy."""
    modulus: Annotated[int, Field(ge=2, le=10**4)]
    """Number of values; there are modulus² prompts."""
    slip: Probability
    """Probability of a wrong value in a demonstration of the warm start."""

    @model_validator(mode="after")
    def _reachable(self) -> ChainConfig:
        if self.choices > self.modulus:
            raise ValueError(f"choices={self.choices} exceeds modulus={self.modulus}: moves would coincide")
        return self


class TextConfig(Strict):
    """A task of text, see harness/tasks/text.py."""

    name: Literal["gsm8k", "jsonl"]
    """The task: GSM8K, or any file of JSON lines."""
    path: str | None
    """JSON lines, one object per prompt. null: GSM8K from the Hugging Face hub."""
    held_out_path: str | None
    """JSON lines for evaluation. null: the last `held_out` prompts of `path`."""
    held_out: Count | None
    """Prompts of `path` that are kept for evaluation."""
    prompt: str
    """Key of the prompt in an object: a string, or a list of chat messages."""
    verifier: str
    """Gives the reward: a name, or `package.module:function` of (response, record)."""
    instruction: str
    """Put after each prompt that is a string."""
    chat: bool
    """Put the prompt into the tokenizer's chat template."""
    max_prompt: Count
    """Longest prompt, in tokens."""
    long_prompts: Literal["drop", "cut"]
    """What happens to a longer prompt: leave it out, or cut off its beginning."""
    answer_length: Count
    """Longest response, in tokens."""

    @model_validator(mode="after")
    def _sources(self) -> TextConfig:
        if self.path is None and self.name == "jsonl":
            raise ValueError("path is missing: name a file of JSON lines")
        if self.path is None and (self.held_out_path or self.held_out):
            raise ValueError("held_out has no effect on gsm8k from the hub, which is evaluated on its test split; set it to null")
        if self.path is not None and (self.held_out_path is None) == (self.held_out is None):
            raise ValueError("held_out_path and task.held_out: give one of them, a file or a number of prompts")
        return self


def _tag(value: Any) -> str:
    return {"chain": "<chain>", "gsm8k": "<text>", "jsonl": "<text>"}.get(name_of(value) or "", "<plugin>")


TaskConfig = Annotated[
    Annotated[ChainConfig, Tag("<chain>")] | Annotated[TextConfig, Tag("<text>")] | Annotated[PluginConfig, Tag("<plugin>")],
    Discriminator(_tag),
]
"""The section `task`, told apart by its name."""
