"""A calculator for language models: + - * / and parentheses on decimal numbers, in exact arithmetic. It evaluates no code."""

from __future__ import annotations

import re
from fractions import Fraction

LONGEST = 200
"""Maximum number of characters in an arithmetic expression. This limit also bounds the depth of parentheses."""
LARGEST = 10**15
"""Results of this absolute value or above are refused as too large."""
TOKEN = re.compile(r"\s*(?:([0-9]+(?:\.[0-9]+)?|\.[0-9]+)|([-+*/()]))")


def calculate(expression: str) -> str:
    """Evaluate an expression. Returns its value, or `error: ` and the reason, in at most 20 characters.

    A whole number is written without a point, any other with up to 10 significant digits. A sign binds tightest: 2*-3 = -6.
    """
    if len(expression) > LONGEST:
        return "error: too long"
    try:
        result = _Reader(expression).whole()
    except ZeroDivisionError:
        return "error: division by 0"
    except ValueError:
        return "error: syntax"
    if abs(result) >= LARGEST:
        return "error: too large"
    return str(result) if result.denominator == 1 else f"{float(result):.10g}"


class _Reader:
    """Recursive descent parser of arithmetic expressions. Every method raises ValueError on invalid input."""

    def __init__(self, text: str):
        self.tokens: list[str] = []
        place, text = 0, text.rstrip()
        while place < len(text):
            match = TOKEN.match(text, place)
            if match is None:
                raise ValueError(text)
            self.tokens.append(match[1] or match[2])
            place = match.end()
        self.tokens.reverse()  # the next one is the last

    def whole(self) -> Fraction:
        value = self.sum()
        if self.tokens:
            raise ValueError(self.tokens[-1])
        return value

    def sum(self) -> Fraction:
        value = self.product()
        while self.at("+-"):
            value = value + self.product() if self.tokens.pop() == "+" else value - self.product()
        return value

    def product(self) -> Fraction:
        value = self.factor()
        while self.at("*/"):
            value = value * self.factor() if self.tokens.pop() == "*" else value / self.factor()
        return value

    def factor(self) -> Fraction:
        if not self.tokens:
            raise ValueError("nothing")
        token = self.tokens.pop()
        if token in "+-":
            return self.factor() if token == "+" else -self.factor()
        if token != "(":
            return Fraction(token)  # ValueError on an operator
        value = self.sum()
        if not self.at(")"):
            raise ValueError(token)
        self.tokens.pop()
        return value

    def at(self, tokens: str) -> bool:
        return bool(self.tokens) and self.tokens[-1] in tokens
