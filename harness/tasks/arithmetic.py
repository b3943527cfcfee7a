"""Generated sums for a language model, such as "What is 26 + 28?", with an exact verifier. They need no data files.

The number of digits, the number of terms and the operators set the difficulty. The seed of the run does not change the prompts.
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
"""Pattern of a whole number. A minus sign is a part of it unless a digit precedes the sign, as in 9-4."""


class Sums(Text):
    """Task of generated sums, configured by harness.config.ArithmeticConfig. Multiplication precedes addition and subtraction."""

    config: ArithmeticConfig | ToolsConfig

    def load(self, split: str) -> list[dict[str, Any]]:
        """Records of generated sums for the split `train` or `held_out`. Each has a `prompt` and the right answer as `value`."""
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
        """The prompt for a sum written as `written`, such as "3 + 4": a string or chat messages."""
        return f"What is {written}?"


def value(written: str) -> int:
    """The value of a written sum of products, such as 23 for "3 + 4 * 5"."""
    products = re.findall(r"([+-]?) ?(\d+(?: \* \d+)*)", written)
    return sum((-1 if sign == "-" else 1) * math.prod(map(int, product.split(" * "))) for sign, product in products)


def verify(response: str, record: dict[str, Any]) -> float:
    """Reward 1 if the last whole number of the response is the record's `value`, else 0. Commas between thousands are ignored."""
    numbers = NUMBER.findall(re.sub(r"(?<=\d),(?=\d{3})", "", response))
    return float(bool(numbers) and int(numbers[-1]) == record["value"])
