"""`task`: the source of prompts, and the reward of responses."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from harness.config.base import Count, PluginConfig, Probability, Strict, name_of

MOST_TARGETS = 100
"""Largest modulus of task=chain with choices above 1. Prompts then have a target too, so there are up to modulus³ of them."""


class ChainConfig(Strict):
    """Keys of the chain task, see harness/tasks/chain.py."""

    name: Literal["chain"]
    """Name of the task."""
    length: Annotated[int, Field(gt=0, le=10**4)]
    """Number of values in an answer of the chain task."""
    choices: Count
    """Number of valid moves at each step of a chain. With more than 1, a policy that solves the task can keep entropy."""
    modulus: Annotated[int, Field(ge=2, le=1000)]
    """Number of different values of the chain task. The task has modulus² prompts, or up to modulus³ if choices is above 1."""
    slip: Probability
    """Probability of a wrong value in a demonstration of the warm start."""
    goal: Literal["value", "total"] = "value"
    """Meaning of the target in a prompt of the chain task, if choices is above 1. value: the last value. total: the sum of the
    moves, less a constant."""

    @model_validator(mode="after")
    def _reachable(self) -> ChainConfig:
        if self.choices > self.modulus:
            raise ValueError(f"choices={self.choices} exceeds modulus={self.modulus}: moves would coincide")
        if self.choices > 1 and self.modulus > MOST_TARGETS:
            raise ValueError(f"modulus={self.modulus} with choices={self.choices}: at most {MOST_TARGETS}, a million prompts")
        if self.choices == 1 and self.goal != "value":
            raise ValueError(f"goal={self.goal} has no effect with choices=1: no move is chosen; use goal=value or choices=2")
        return self


class LengthsConfig(Strict):
    """Keys for the lengths of prompts and responses, in tasks of text that may have long prompts."""

    max_prompt: Count
    """Maximum number of tokens in a prompt."""
    long_prompts: Literal["drop", "cut", "error"]
    """Treatment of prompts longer than max_prompt. drop: leave out. cut: cut off the beginning. error: refuse the data."""
    answer_length: Count
    """Maximum number of tokens in a response."""


class TextConfig(LengthsConfig):
    """Keys of the tasks of text, see harness/tasks/text.py."""

    name: Literal["gsm8k", "jsonl"]
    """Name of the task: GSM8K, or any file of JSON lines."""
    path: str | None
    """File of JSON lines with one object per prompt. null: GSM8K from the Hugging Face hub."""
    held_out_path: str | None
    """File of JSON lines for evaluation. null: the last `held_out` prompts of `path`, or the test split of GSM8K."""
    held_out: Count | None
    """Number of prompts of `path` that are kept for evaluation."""
    prompt: str
    """Key of the prompt in each JSON object. The prompt is a string, or a list of chat messages."""
    verifier: str
    """Function (response, JSON object of the prompt) that returns the reward: a name, or `package.module:function`."""
    instruction: str
    """Text after each prompt that is a string."""
    chat: bool
    """Whether to put the prompt into the tokenizer's chat template."""

    @model_validator(mode="after")
    def _sources(self) -> TextConfig:
        if self.path is None and self.name == "jsonl":
            raise ValueError("path is missing: name a file of JSON lines")
        if self.path is None and (self.held_out_path or self.held_out):
            raise ValueError("held_out has no effect on gsm8k from the hub, which is evaluated on its test split; set it to null")
        if self.path is not None and (self.held_out_path is None) == (self.held_out is None):
            raise ValueError("held_out_path and task.held_out: give one of them, a file or a number of prompts")
        return self


class SumsConfig(Strict):
    """Keys of the tasks of generated sums, see harness/tasks/arithmetic.py. These tasks read no file."""

    operators: Annotated[str, Field(pattern=r"^[-+*]+$")]
    """Operators between the numbers of a sum, drawn with equal probability."""
    digits: Annotated[int, Field(gt=0, le=18)]
    """Maximum number of digits of a number in a sum."""
    terms: Annotated[int, Field(ge=2, le=100)]
    """Number of terms in a sum."""
    train: Annotated[int, Field(gt=0, le=10**6)]
    """Number of prompts for RL, all different, and the same for every seed of a run."""
    held_out: Annotated[int, Field(gt=0, le=10**6)]
    """Number of prompts for evaluation, all different from those for RL."""
    instruction: str
    """Text after each prompt."""
    max_prompt: Count
    """Maximum number of tokens in a prompt."""

    prompt: ClassVar[str] = "prompt"  # these three are what a TextConfig leaves to its user
    chat: ClassVar[bool] = True
    long_prompts: ClassVar[str] = "drop"

    @model_validator(mode="after")
    def _enough(self) -> SumsConfig:
        operators = len(set(self.operators))
        there = 10 ** (self.digits * self.terms) * operators ** (self.terms - 1)
        if (wanted := self.train + self.held_out) > there:
            raise ValueError(
                f"train and task.held_out: {wanted} different prompts are more than the {there} there are; "
                "lower them, or raise task.digits or task.terms"
            )
        return self


class ArithmeticConfig(SumsConfig):
    """Keys of the task of generated sums in the chat template, see harness/tasks/arithmetic.py."""

    name: Literal["arithmetic"]
    """Name of the task."""
    answer_length: Count
    """Maximum number of tokens in a response."""

    verifier: ClassVar[str] = "arithmetic"


REPLY_LENGTH = 24
"""Maximum length of the calculator's reply in task=tools, in characters. It bounds the number of tokens too."""


class ToolsConfig(SumsConfig):
    """Keys of the task of generated sums with a calculator that answers between turns, see harness/tasks/tools.py."""

    name: Literal["tools"]
    """Name of the task."""
    turns: Annotated[int, Field(gt=0, le=1000)]
    """Maximum number of turns in a response. After each turn but the last the calculator may answer."""
    turn_length: Count
    """Maximum number of tokens that the policy writes in a turn."""

    verifier: ClassVar[str] = "tools"

    @property
    def answer_length(self) -> int:
        """Maximum number of tokens in a response, the calculator's replies included."""
        return self.turns * self.turn_length + (self.turns - 1) * REPLY_LENGTH


class ReasoningGymConfig(LengthsConfig):
    """Keys of the tasks that the package reasoning-gym generates, see harness/tasks/reasoning_gym.py."""

    name: Literal["reasoning_gym"]
    """Name of the task."""
    dataset: str
    """Name of a data set of reasoning-gym, such as basic_arithmetic."""
    params: dict[str, Any]
    """Keys of the data set's own config, such as max_terms of basic_arithmetic. Keys left out have their defaults."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)]
    """Seed of the data set, the same for every seed of a run."""
    train: Annotated[int, Field(gt=0, le=10**6)]
    """Number of prompts for RL, all different."""
    held_out: Annotated[int, Field(gt=0, le=10**6)]
    """Number of prompts for evaluation, all different from those for RL."""
    instruction: str
    """Text after each question."""

    prompt: ClassVar[str] = "question"  # as an item of a data set names it
    chat: ClassVar[bool] = True
    verifier: ClassVar[str] = "reasoning_gym"


TEXT = (TextConfig, SumsConfig, ReasoningGymConfig)
"""Config classes of the tasks of text, whose prompts only a pretrained model reads."""

_TAGS = {"gsm8k": "<text>", "jsonl": "<text>"} | {name: f"<{name}>" for name in ("chain", "arithmetic", "tools", "reasoning_gym")}


def _tag(value: Any) -> str:
    return _TAGS.get(name_of(value) or "", "<plugin>")


TaskConfig = Annotated[
    Annotated[ChainConfig, Tag("<chain>")]
    | Annotated[TextConfig, Tag("<text>")]
    | Annotated[ArithmeticConfig, Tag("<arithmetic>")]
    | Annotated[ToolsConfig, Tag("<tools>")]
    | Annotated[ReasoningGymConfig, Tag("<reasoning_gym>")]
    | Annotated[PluginConfig, Tag("<plugin>")],
    Discriminator(_tag),
]
"""Type of the section `task`. Its key `name` selects the class."""
