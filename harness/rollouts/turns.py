"""Responses of several turns: the policy writes, the environment answers, and the policy goes on.

A turn is sampled after the token ids of all earlier turns. These ids are kept as sampled, and never decoded and tokenised
again. A tokenizer could turn the same text into other tokens, so that π would score a history that μ has not seen.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

import torch
from torch import Tensor

from harness.rollouts import Rollout, RolloutEngine
from harness.rollouts.lists import padded
from harness.tasks import PAD, EnvironmentTask, Task

Write = Callable[[Tensor, Tensor, Tensor, int], Rollout]
"""Function that lets the policy write one turn of each of n answers, and returns the rollout [n, length].

Arguments: contexts [n, L] padded on the left, row numbers [n], lengths [n] of the answers so far, maximum number of new tokens.
"""


def respond(engine: RolloutEngine, task: Task, prompts: Tensor, uniforms: Tensor) -> Rollout:
    """Sample one response per row of prompts [B, P], in turns if the task has an environment.

    uniforms: [B, T]. Number t of a row draws token t of its response, so that a response depends on its own row alone.
    """
    if not isinstance(task, EnvironmentTask):
        return engine.generate(prompts, uniforms)

    def write(contexts: Tensor, rows: Tensor, starts: Tensor, length: int) -> Rollout:
        places = starts[:, None] + torch.arange(length)
        return engine.generate(contexts, uniforms[rows[:, None], places])

    return _converse(write, task, prompts, uniforms.shape[1])


def respond_greedily(engine: RolloutEngine, task: Task, prompts: Tensor) -> Tensor:
    """Generate greedy responses [B, task.answer_length]: the policy always writes the most probable token."""
    if not isinstance(task, EnvironmentTask):
        return engine.greedy(prompts, task.answer_length)

    def write(contexts: Tensor, rows: Tensor, starts: Tensor, length: int) -> Rollout:
        tokens = engine.greedy(contexts, length)
        return Rollout(tokens, torch.zeros(tokens.shape), torch.zeros_like(tokens))

    return _converse(write, task, prompts, task.answer_length).tokens


def turn_metrics(rollout: Rollout) -> dict[str, Tensor]:
    """Mean numbers, per response, of turns and of tokens that the environment wrote; {} for a task without an environment."""
    if rollout.turns is None or rollout.environment is None:
        return {}
    turns = torch.where(rollout.written, rollout.turns + 1, 0).amax(1)
    return {"rollout/turns": turns.float().mean(), "rollout/environment_tokens": rollout.environment.sum(1).float().mean()}


class _Answer:
    """A response of several turns that is still being written. Its lists have one value per token so far."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logp: list[float] = []
        self.version: list[int] = []
        self.turns: list[int] = []
        self.environment: list[bool] = []
        self.turn = self.start = 0  # the present turn, and the place where it begins
        self.ended = False

    def room(self, task: EnvironmentTask) -> int:
        """Number of tokens that the policy may still write in the present turn; 0 if the answer has ended."""
        return 0 if self.ended else task.turn_length - (len(self.tokens) - self.start)

    def extend(self, tokens: list[int], logp: list[float], version: list[int], environment: bool) -> None:
        self.tokens += tokens
        self.logp += logp
        self.version += version
        self.turns += [self.turn] * len(tokens)
        self.environment += [environment] * len(tokens)

    def ask(self, task: EnvironmentTask) -> None:
        """At a pause add the environment's reply, if any, and begin a turn; elsewhere or with no turn left end the answer."""
        last = self.tokens[-1]
        reply = task.reply(self.tokens[self.start :]) if last in task.pauses else []
        if reply and self.turn + 1 < task.turns:
            self.extend(reply, [0.0] * len(reply), [self.version[-1]] * len(reply), environment=True)
            self.turn, self.start = self.turn + 1, len(self.tokens)
        elif reply or last not in task.pauses:  # no turn is left, the answer is complete, or it was cut off
            self.ended = True


def _converse(write: Write, task: EnvironmentTask, prompts: Tensor, length: int) -> Rollout:
    """Sample answers of several turns to prompts [B, P]. Answers with room for equally many tokens share a call of `write`."""
    asked = [row[row != PAD].tolist() for row in prompts.cpu()]
    answers = [_Answer() for _ in asked]

    def room(row: int) -> int:
        return answers[row].room(task)

    while going := sorted((row for row in range(len(answers)) if room(row)), key=room):
        for most, group in groupby(going, key=room):
            rows = list(group)
            contexts = [asked[row] + answers[row].tokens for row in rows]
            starts = torch.tensor([len(answers[row].tokens) for row in rows])
            whole = padded(contexts, max(map(len, contexts)), PAD, torch.int64, left=True).to(prompts.device)
            written = write(whole, torch.tensor(rows), starts, most)
            columns = [written.tokens.tolist(), written.logp.tolist(), written.version.tolist()]
            for row, tokens, logp, version in zip(rows, *columns, strict=True):
                own = sum(token != PAD for token in tokens)
                answers[row].extend(tokens[:own], logp[:own], version[:own], environment=False)
        for row in going:
            answers[row].ask(task)
    return _rollout(answers, length, prompts.device)


def _rollout(answers: list[_Answer], length: int, device: torch.device) -> Rollout:
    def stacked(name: str, fill: float, dtype: torch.dtype) -> Tensor:
        return padded([getattr(a, name) for a in answers], length, fill, dtype).to(device)

    integer = torch.int64
    return Rollout(
        stacked("tokens", PAD, integer),
        stacked("logp", 0.0, torch.float32),
        stacked("version", 0, integer),
        turns=stacked("turns", 0, integer),
        environment=stacked("environment", False, torch.bool),
    )
