"""The keys and values of another program's config, and which of them were taken."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, overload

from harness.errors import UserError

LIST_IN_TEXT = re.compile(r"""\[\s*['"]?([^'",\]]+?)['"]?\s*(?:,.*)?\]""", re.S)


class Source:
    """The keys and values of another program's config, under short names. `left` lists the keys that no importer has taken."""

    def __init__(self, flat: dict[str, Any], shorten: Callable[[str], str]):
        self._values: dict[str, tuple[str, Any]] = {}
        for key, value in flat.items():
            short = shorten(key)
            if short in self._values and self._values[short][1] != value:
                raise UserError(f"{key}={value} contradicts {self._values[short][0]}={self._values[short][1]}; remove one")
            self._values[short] = (key, value)
        self._taken: set[str] = set()

    def has(self, *names: str) -> bool:
        """Whether one of the keys `names` has a value other than null; false counts as a value."""
        return any(self._values.get(name, ("", None))[1] is not None for name in names)

    def given(self, name: str) -> bool:
        """Whether the config has the key `name`, even with the value null."""
        return name in self._values

    def resolved(self, name: str) -> bool:
        """Whether the key `name` has a value other than null, without a ${variable} that only an execution would resolve."""
        return self.has(name) and "${" not in str(self._values[name][1])

    def take(self, *names: str, default: Any = None) -> Any:
        """Return the value of the first key of `names` that is set, else `default`. Raises UserError on a list or ${variable}."""
        self._taken.update(names)
        value = next((self._values[name][1] for name in names if self.has(name)), default)
        if isinstance(value, list | dict):
            raise UserError(f"{self.key(*names)}={value}: must be a single value")
        if isinstance(value, str) and "${" in value:
            raise UserError(f"{self.key(*names)}={value}: resolve the config first, or write the value into the script")
        return value

    @overload
    def number(self, *names: str, default: float) -> float: ...
    @overload
    def number(self, *names: str, default: None = None) -> float | None: ...
    def number(self, *names: str, default: float | None = None) -> float | None:
        """Take the value of the first key of `names` that is set, as a number. Raises UserError on a value that is no number."""
        value = self.take(*names, default=default)
        return None if value is None else as_number(self.key(*names), value)

    def text(self, name: str) -> str | None:
        """Take the value of `name` as a string; None if it is not set. From a list, as SkyRL and verl allow, take the first."""
        value = self._values.get(name, ("", None))[1]
        if isinstance(value, str) and (listed := LIST_IN_TEXT.fullmatch(value)):
            value = [listed[1]]
        if isinstance(value, list) and value:
            self._values[name] = (self._values[name][0], value[0])
        value = self.take(name)
        return None if value is None else str(value)

    def numbers(self, name: str) -> list[float] | None:
        """Take the value of `name` as a list of numbers; None if it is no list. Raises UserError on other elements."""
        value = self._values.get(name, ("", None))[1]
        if not isinstance(value, list):
            return None
        self._taken.add(name)
        return [float(as_number(self.key(name), one)) for one in value]

    def flag(self, *names: str, default: bool = False) -> bool:
        """Take the value of the first key of `names` that is set, as true or false. Raises UserError on any other value."""
        value = self.take(*names, default=default)
        if not isinstance(value, bool):
            raise UserError(f"{self.key(*names)}={value!r}: must be true or false")
        return value

    def key(self, *names: str) -> str:
        """Full key, as spelled in the config, of the first of the short `names` that the config has."""
        return next((self._values[name][0] for name in names if name in self._values), names[0])

    def expand(self, values: Mapping[str, Any]) -> None:
        """Set the keys `values` that a preset stands for. A key in the config itself takes precedence."""
        for name, value in values.items():
            self._values.setdefault(name, (name, value))

    def left(self) -> list[str]:
        """List, as key=value, every key that has a value and was not taken by an importer."""
        kept = (self._values[short] for short in self._values if short not in self._taken)
        return [f"{key}={value}" for key, value in kept if value is not None]


def as_number(key: str, value: Any) -> float:
    """Convert a config's value to a number. Raises UserError with its `key` unless it is a number or text such as "1e-4"."""
    try:
        if isinstance(value, bool) or "_" in str(value):  # Python reads 1_2 as 12
            raise ValueError
        number = float(value)
    except (TypeError, ValueError):
        raise UserError(f"{key}={value!r}: must be a number") from None
    return int(number) if number.is_integer() and not isinstance(value, float) else number
