"""Error messages for a config: one line per key, with its value and the accepted values or the remedy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from harness.config.base import PATTERNS

KINDS = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "string": "text", "list": "a list"}
"""Pydantic's words for a type -> words that a user understands."""
SECTION = ("model_type", "dataclass_type", "dict_type")
"""Pydantic's names of the errors that a plain value in place of a section causes."""


def explained(error: ValidationError, composed: dict[str, Any]) -> list[str]:
    """One line for each error in the config `composed`, except errors of a filter type that the user did not intend."""
    lines = [(problem["type"], explain(problem)) for problem in error.errors() if _meant(problem["loc"], composed)]
    return [f"{line}; give it, as {line.removesuffix(': missing')}=VALUE" if kind == "missing" else line for kind, line in lines]


def explain(problem: Mapping[str, Any]) -> str:
    """One line for an error of a ValidationError: the key, its value, and what is wrong."""
    parts = [str(part) for part in problem["loc"] if part not in ("Reject", "Plugin")]
    key = ".".join(part for part in parts if not part.startswith("<"))
    kind, message = problem["type"], problem["msg"].removeprefix("Value error, ")
    if kind == "missing":
        return f"{key}: missing"
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{key}: unknown key; remove it"
    if kind == "value_error":
        return f"{key}.{message}" if key else message
    if kind in SECTION:
        return f"{key}={problem['input']!r}: a section; set its keys, as {key}.KEY=VALUE"
    if kind == "string_pattern_mismatch":
        message = PATTERNS.get(problem["ctx"]["pattern"], message)
    return f"{key}={problem['input']!r}: {_in_our_words(message)}"


def _in_our_words(message: str) -> str:
    """Rephrase a message of Pydantic, such as "Input should be a valid integer", as "must be a whole number"."""
    wanted = message.removeprefix("Input should be ")
    if wanted == message:
        return f"{message[0].lower()}{message[1:]}"
    if (kind := wanted.partition(",")[0].removeprefix("a valid ")) in KINDS:
        return f"must be {KINDS[kind]}"
    return f"must be {wanted}"


def _meant(place: tuple, composed: dict[str, Any]) -> bool:
    """Whether an error concerns the type that the user intended. place: the keys that lead to the error's value.

    Pydantic tries each filter of a correction both as a Reject and as a Plugin, and reports the errors of both.
    """
    if place[:2] != ("correction", "reject") or len(place) < 4:
        return True
    filter_ = composed["correction"]["reject"].get(place[2])  # none if pydantic shows the key otherwise
    return place[3] == ("Plugin" if isinstance(filter_, dict) and "function" in filter_ else "Reject")
