"""Task of sums with a calculator: a response has several turns, between which the calculator answers.

The policy writes `<<47 * 38>>`, the calculator appends ` = 1786` and a new line, and the policy goes on. Two solved sums in
the prompt show this. The answer is the last whole number after the last reply.
"""

from __future__ import annotations

import re
from typing import Any

from transformers import PreTrainedTokenizerBase

from harness.config import REPLY_LENGTH, ToolsConfig
from harness.tasks import arithmetic
from harness.tasks.calculator import calculate

CALL = re.compile(r"<<([^<>]*)>>")
ANSWERED = re.compile(r"<<[^<>]*>>[^=]*= [^\n]*\n")
"""Pattern of a calculator call with its reply. The token that ends a call may contain more than `>>`, such as a line break."""
EXAMPLES = (("3 + 5", 8), ("12 * 17", 204))


class Tools(arithmetic.Sums):
    """Task of generated sums with a calculator, configured by harness.config.ToolsConfig. It is an EnvironmentTask."""

    config: ToolsConfig

    def __init__(self, config: ToolsConfig, tokenizer: PreTrainedTokenizerBase):
        super().__init__(config, tokenizer)
        self.turns, self.turn_length = config.turns, config.turn_length
        special = set(tokenizer.all_special_ids)
        # However a tokenizer spells `>>`, the last token of it has a `>`.
        self.pauses = tuple(sorted(i for token, i in tokenizer.get_vocab().items() if ">" in token and i not in special))

    def ask(self, written: str) -> list[dict[str, str]]:
        """The prompt for a written sum: two solved examples and the sum, as chat messages."""
        shown = [
            {"role": role, "content": content}
            for sum_, result in EXAMPLES
            for role, content in (("user", self._question(sum_)), ("assistant", f"<<{sum_}>>{reply(sum_)}{result}"))
        ]
        return [*shown, {"role": "user", "content": self._question(written)}]

    def _question(self, written: str) -> str:
        return f"What is {written}?{self.config.instruction}"

    def reply(self, turn: list[int]) -> list[int]:
        """Tokens of the calculator's reply to the last call `<<...>>` in `turn`, also given as tokens; empty without a call."""
        calls = CALL.findall(str(self.tokenizer.decode(turn, skip_special_tokens=True)))
        return self.tokenizer(reply(calls[-1]), add_special_tokens=False)["input_ids"][:REPLY_LENGTH] if calls else []


def reply(expression: str) -> str:
    """The calculator's reply to an expression, a string of at most REPLY_LENGTH characters such as " = 1786" and a new line."""
    written = f" = {calculate(expression)}\n"
    assert len(written) <= REPLY_LENGTH
    return written


def verify(response: str, record: dict[str, Any]) -> float:
    """Reward 1 if the last whole number after the last reply is the record's `value`, else 0. A call without reply is ignored."""
    last = ANSWERED.split(response)[-1]
    return arithmetic.verify(CALL.sub("", last), record)
