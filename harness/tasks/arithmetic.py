"""Sums for a language model, as "What is 26 + 28?": generated, so that no file is needed, with an exact verifier.

Difficulty has three dials: digits of a number, terms of a sum, operators. The prompts are a function of these alone.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from harness.config import ArithmeticConfig, ToolsConfig
from harness.seeding import derive
from harness.tasks.text import Text

NUMBER = re.compile(r"(?<![\d.])-?\d+")
"""A whole number: the minus sign is its own unless a digit stands before it, as in 9-4."""


class Sums(Text):
    """See harness.config.ArithmeticConfig. Multiplication binds first, as everywhere."""

    config: ArithmeticConfig | ToolsConfig

    def load(self, split: str) -> list[dict[str, Any]]:
        """The records of `train` or `held_out`: prompt, and value, the right answer."""
        c = self.config
        rng = np.random.default_rng(derive(0, "arithmetic"))
        drawn: dict[str, None] = {}  # in the order drawn, each once
        while len(drawn) < c.train + c.held_out:
            numbers = [str(number) for number in rng.integers(0, 10**c.digits, c.terms)]
            between = rng.choice(sorted(set(c.operators)), c.terms - 1)
            drawn[" ".join([numbers[0], *(f"{o} {n}" for o, n in zip(between, numbers[1:], strict=True))])] = None
        chosen = list(drawn)[: c.train] if split == "train" else list(drawn)[c.train :]
        return [{"prompt": self.ask(written), "value": value(written)} for written in chosen]

    def ask(self, written: str) -> str | list[dict[str, str]]:
        """The prompt for a sum, as text or as messages of a chat."""
        return f"What is {written}?"


def value(written: str) -> int:
    """The value of a sum of products: 23 for "3 + 4 * 5"."""
    products = re.findall(r"([+-]?) ?(\d+(?: \* \d+)*)", written)
    return sum((-1 if sign == "-" else 1) * math.prod(map(int, product.split(" * "))) for sign, product in products)


def verify(response: str, record: dict[str, Any]) -> float:
    """1 if the last whole number of the response is the value; commas between thousands are ignored."""
    numbers = NUMBER.findall(re.sub(r"(?<=\d),(?=\d{3})", "", response))
    return float(bool(numbers) and int(numbers[-1]) == record["value"])
