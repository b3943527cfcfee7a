"""Tasks with a verifier: their interface and their registry.

`chain` is embedded and has tokens of its own. The others are text and need a tokenizer; in `tools` a calculator answers.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from algos.registry import Registry

PAD = -1
"""Stands before a shorter prompt and after a shorter answer."""

TASKS = Registry(
    "tasks",
    {
        "chain": "harness.tasks.chain:Chain",
        "gsm8k": "harness.tasks.gsm8k:Gsm8k",
        "jsonl": "harness.tasks.text:Jsonl",
        "arithmetic": "harness.tasks.arithmetic:Sums",
        "tools": "harness.tasks.tools:Tools",
    },
)


class Task(Protocol):
    """Prompts, and what an answer to one of them is worth.

    Life cycle: built as `TASKS[name](config, tokenizer)`; then `prompts` once and `reward` any number of times. Building reads
    all data, and raises UserError on data that cannot be used. After that a task never changes, so a reward depends on prompt
    and answer alone. Every rank builds its own.

    config: the section `task` of the run; a plug-in finds its own keys in `config.params`.
    tokenizer: the pretrained model's with model=hub, else None.

    Prompts are [N, P] int64 with PAD on the left of shorter ones. Answers are [N, T] int64 with PAD after their end.
    A task is a TokenTask or a TextTask too, by the model that it is for, and may be a TurnTask or an EnvironmentTask.
    """

    answer_length: int
    """The most tokens of an answer, T."""
    stop: tuple[int, ...]
    """Tokens that end an answer; empty if every answer has `answer_length` tokens."""
    counts: dict[str, int]
    """How the prompts were made, such as the number dropped; recorded in the run's events unless empty."""

    def prompts(self) -> np.ndarray:
        """Every prompt, [N, P]."""

    def reward(self, prompts: np.ndarray, answers: np.ndarray) -> np.ndarray:
        """float64 [N], 0 to 1. Each rank calls it with its own rows."""


@runtime_checkable
class TokenTask(Task, Protocol):
    """A task with tokens of its own, for model=qwen3. The warm start trains on its demonstrations and divides its prompts."""

    vocab_size: int

    def demonstrations(self, prompts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """An answer to each prompt, [N, answer_length]: good, but not perfect, so that RL has something to learn."""


@runtime_checkable
class TextTask(Task, Protocol):
    """A task in the tokens of a pretrained model, for model=hub. It divides its prompts itself."""

    train: np.ndarray
    """Prompts for RL, [N, P]."""
    held_out: np.ndarray
    """Prompts for evaluation, [N, P]."""


@runtime_checkable
class TurnTask(Protocol):
    """A task whose answers have turns, which corrections of level segment read."""

    def segments(self, answers: np.ndarray) -> np.ndarray:
        """[N, T] -> int64 [N, T], 0 ≤ id < T: the number of each token's turn."""


@runtime_checkable
class EnvironmentTask(Protocol):
    """A text task with an environment, which answers between the turns of a response.

    An answer [T] is turn, reply, turn, ..., turn. Its tokens from the environment are context: nothing is trained on them, and no
    metric counts them. `harness.rollouts.turns` samples such answers.
    """

    turns: int
    """Most turns of an answer."""
    turn_length: int
    """Most tokens of a turn."""
    pauses: tuple[int, ...]
    """Tokens after which the environment is asked; the engine stops there."""

    def reply(self, turn: list[int]) -> list[int]:
        """Tokens of the environment after these of a turn; empty where it has nothing to answer, and the turn goes on.

        A function of the turn alone.
        """


def stops(task: Task) -> tuple[int, ...]:
    """The tokens after which an engine stops sampling a row."""
    return (*task.stop, *task.pauses) if isinstance(task, EnvironmentTask) else task.stop
