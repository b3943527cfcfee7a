"""Tasks with a verifier: their interface and their registry.

The task `chain` defines its own tokens. The other tasks are text and need a tokenizer; in `tools` the policy calls a calculator.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from algos.registry import Registry

PAD = -1
"""Padding token id: placed before a shorter prompt and after a shorter answer."""

TASKS = Registry(
    "tasks",
    {
        "chain": "harness.tasks.chain:Chain",
        "gsm8k": "harness.tasks.gsm8k:Gsm8k",
        "jsonl": "harness.tasks.text:Jsonl",
        "arithmetic": "harness.tasks.arithmetic:Sums",
        "tools": "harness.tasks.tools:Tools",
        "reasoning_gym": "harness.tasks.reasoning_gym:ReasoningGym",
    },
)


class Task(Protocol):
    """A task: its prompts, and the reward of an answer to a prompt.

    Life cycle: constructed as `TASKS[name](config, tokenizer)`; then `prompts` once and `reward` any number of times. The
    constructor reads all data, and raises UserError on unusable data. Later a task never changes, so a reward depends on
    prompt and answer alone. Every rank constructs its own task.

    config: the section `task` of the run; a plug-in finds its own keys in `config.params`.
    tokenizer: that of the pretrained model with model.name=hub, else None.

    Prompts are [N, P] int64 with PAD on the left of shorter ones. Answers are [N, T] int64 with PAD after their end. A task is
    also a TextTask (for model.name=hub) or a TokenTask (for other models), and may be a TurnTask or an EnvironmentTask.
    """

    answer_length: int
    """Maximum number of tokens in an answer, T."""
    stop: tuple[int, ...]
    """Tokens that end an answer; empty if every answer has `answer_length` tokens."""
    counts: dict[str, int]
    """Counts of prompts by treatment, such as the number dropped; recorded in the run's events unless empty."""

    def prompts(self) -> np.ndarray:
        """All prompts of the task, [N, P]."""

    def reward(self, prompts: np.ndarray, answers: np.ndarray) -> np.ndarray:
        """Rewards of answers to prompts, float64 [N] from 0 to 1. Each rank passes its own prompts and answers."""


@runtime_checkable
class TokenTask(Task, Protocol):
    """A task that defines its own tokens, for models with random weights (model.name=qwen3 or qwen3_moe). The warm start learns
    from its demonstrations, and splits its prompts into training and held-out ones."""

    vocab_size: int

    def demonstrations(self, prompts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A demonstration for each prompt, [N, answer_length]: usually right, with some errors that RL can correct."""


@runtime_checkable
class TextTask(Task, Protocol):
    """A task in the tokens of a pretrained model (model.name=hub). It splits its prompts into training and held-out ones."""

    train: np.ndarray
    """Token ids of the prompts for RL, [N, P]."""
    held_out: np.ndarray
    """Token ids of the prompts for evaluation, [N, P]."""


@runtime_checkable
class TurnTask(Protocol):
    """A task whose answers consist of turns. Corrections with level=segment take one importance ratio per turn."""

    def segments(self, answers: np.ndarray) -> np.ndarray:
        """Number of the turn to which each token belongs, from 0 to T − 1: answers [N, T] -> int64 [N, T]."""


@runtime_checkable
class EnvironmentTask(Protocol):
    """A text task with an environment, which replies between the turns of an answer.

    An answer [T] is turn, reply, turn, ..., turn. Tokens of the environment are context: they are not trained on, and no
    metric counts them. `harness.rollouts.turns` samples such answers.
    """

    turns: int
    """Maximum number of turns in an answer."""
    turn_length: int
    """Maximum number of tokens in a turn."""
    pauses: tuple[int, ...]
    """Tokens at which the engine stops and the environment is asked for a reply."""

    def reply(self, turn: list[int]) -> list[int]:
        """Tokens of the environment's reply, which depends on `turn` alone. An empty reply continues the turn."""


def stops(task: Task) -> tuple[int, ...]:
    """All tokens at which an engine stops sampling a response to this task, the pauses of an environment included."""
    return (*task.stop, *task.pauses) if isinstance(task, EnvironmentTask) else task.stop
