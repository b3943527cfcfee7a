"""Constrained types of numbers and strings, and the two base classes of config sections."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(strict=True, gt=0, le=10**9)]
Positive = Annotated[float, Field(strict=True, gt=0, le=1e9, allow_inf_nan=False)]
Probability = Annotated[float, Field(strict=True, ge=0, le=1)]
PositiveFraction = Annotated[float, Field(strict=True, gt=0, le=1)]
NAME, ONE_LINE = r"^\w[\w.-]*$", r"^[^\x00-\x1f]*$"
PATTERNS = {
    NAME: "letters, digits, _, - and . are accepted, and neither - nor . at the beginning",
    ONE_LINE: "one line without control characters is accepted",
}
"""Regular expression -> description in words of the strings that it accepts, for error messages."""
Name = Annotated[str, Field(pattern=NAME)]
Text = Annotated[str, Field(min_length=1, pattern=ONE_LINE)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**63)]


def name_of(value: Any) -> str | None:
    """Value of the key `name` in a section, a dictionary or an object, by which its class is selected; None if it has no name."""
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    return name if isinstance(name, str) else None


class Strict(BaseModel):
    """Immutable base class of config sections. Unknown keys, values of a wrong type, infinite numbers and NaN are refused.

    `--help` shows the docstring below a field. A field's default keeps the behaviour of runs from before the key was added, so
    it never changes (`harness.config.digest`). New runs get the values of experiments/conf.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class PluginConfig(Strict):
    """A plug-in and its parameters. `harness.build` checks them against the plug-in's signature."""

    model_config = ConfigDict(extra="allow")
    name: str
    """Name of the plug-in in its registry, or `package.module:attribute`."""

    @property
    def params(self) -> dict[str, Any]:
        """The plug-in's parameters: all keys but `name`."""
        return dict(self.model_extra or {})
