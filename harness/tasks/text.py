"""Text tasks: prompts from records, put into the tokenizer's chat template, and a verifier from VERIFIERS or an import path."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from algos.registry import Registry
from harness.config import ArithmeticConfig, ReasoningGymConfig, TextConfig, ToolsConfig
from harness.errors import UserError
from harness.tasks import PAD

VERIFIERS = Registry(
    "verifiers",
    {
        "gsm8k": "harness.tasks.gsm8k:verify",
        "arithmetic": "harness.tasks.arithmetic:verify",
        "tools": "harness.tasks.tools:verify",
        "reasoning_gym": "harness.tasks.reasoning_gym:verify",
    },
)
"""Registry of verifiers: functions `(response: str, record: dict) -> float` from 0 to 1. `record` is the prompt's JSON object."""


class Text(ABC):
    """A text task: records whose prompt is a string or a list of chat messages, and a verifier of the responses.

    Prompts of more than max_prompt tokens are dropped, cut at their beginning, or refused (task.long_prompts). Of
    equal prompts only the first is kept. `counts` says how many are kept, dropped, cut and repeated. Subclasses define `load`.
    """

    def __init__(
        self, config: TextConfig | ArithmeticConfig | ToolsConfig | ReasoningGymConfig, tokenizer: PreTrainedTokenizerBase
    ):
        self.config, self.tokenizer = config, tokenizer
        self.verifier: Callable[[str, dict[str, Any]], float] = VERIFIERS[config.verifier]
        self.answer_length = config.answer_length
        self.stop: tuple[int, ...] = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
        self.counts = {"kept": 0, "dropped": 0, "cut": 0, "repeated": 0}
        self.records: dict[bytes, dict[str, Any]] = {}
        train, held_out = self._encode(self.load("train")), self._encode(self.load("held_out"))
        if not held_out and config.held_out:  # no file of its own: the last prompts
            train, held_out = train[: -config.held_out], train[-config.held_out :]
        if not train or not held_out:
            raise UserError(f"task: {self.counts}: no prompts are left to train on and to evaluate; raise task.max_prompt")
        self.train, self.held_out = np.stack(train), np.stack(held_out)

    @abstractmethod
    def load(self, split: str) -> list[dict[str, Any]]:
        """Records of the split `train` or `held_out`. If `held_out` has none, the last task.held_out prompts of `train`
        are held out."""

    def prompts(self) -> np.ndarray:
        """All prompts of the task as token ids, [N, max_prompt]."""
        return np.concatenate([self.train, self.held_out])

    def reward(self, prompts: np.ndarray, answers: np.ndarray) -> np.ndarray:
        """The verifier's reward of each answer, float64 [N]. Raises UserError on a reward that is not a number from 0 to 1."""
        texts = self.tokenizer.batch_decode([row[row != PAD].tolist() for row in answers], skip_special_tokens=True)
        rewards = [float(self.verifier(text, self.records[row.tobytes()])) for text, row in zip(texts, prompts, strict=True)]
        if wrong := [reward for reward in rewards if not 0 <= reward <= 1]:
            raise UserError(f"task.verifier={self.config.verifier}: gave {wrong[0]}; a reward is a number from 0 to 1")
        return np.array(rewards)

    def _encode(self, records: list[dict[str, Any]]) -> list[np.ndarray]:
        rows, longest = [], self.config.max_prompt
        for record in records:
            ids = self._tokens(record)
            if len(ids) > longest and self.config.long_prompts == "error":
                raise UserError(
                    f"task.max_prompt={longest}: this prompt has {len(ids)} tokens; raise it, or set task.long_prompts=drop or "
                    f"cut: {record}"
                )
            if len(ids) > longest and self.config.long_prompts == "drop":
                self.counts["dropped"] += 1
                continue
            self.counts["cut"] += len(ids) > longest
            row = np.full(longest, PAD, dtype=np.int64)
            row[longest - len(ids[-longest:]) :] = ids[-longest:]
            if row.tobytes() in self.records:
                self.counts["repeated"] += 1
                continue
            self.records[row.tobytes()] = record
            self.counts["kept"] += 1
            rows.append(row)
        return rows

    def _tokens(self, record: dict[str, Any]) -> list[int]:
        prompt = record.get(self.config.prompt)
        if not prompt or not isinstance(prompt, str | list):
            raise UserError(f"task.prompt={self.config.prompt}: this record has no text or messages under that key: {record}")
        if not self.config.chat:
            if not isinstance(prompt, str):
                raise UserError("task.chat=false: a list of messages needs a chat template; set task.chat=true")
            return self.tokenizer(prompt + self.config.instruction)["input_ids"]
        if self.tokenizer.chat_template is None:
            raise UserError("task.chat=true: this tokenizer has no chat template; set task.chat=false")
        messages = [{"role": "user", "content": prompt + self.config.instruction}] if isinstance(prompt, str) else prompt
        text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]


class Jsonl(Text):
    """A text task from a file of JSON lines, one object per line. `task.prompt` is the key of the prompt in an object."""

    config: TextConfig

    def load(self, split: str) -> list[dict[str, Any]]:
        path = self.config.path if split == "train" else self.config.held_out_path
        return [] if path is None else _lines(Path(path))


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as a task ({error})") from None
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path}:{number}: not JSON ({error})") from None
        if not isinstance(record, dict):
            raise UserError(f"{path}:{number}: one object per line is needed")
        records.append(record)
    return records
