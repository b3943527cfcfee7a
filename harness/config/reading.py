"""From nested dictionaries to a Config: those that Hydra composes, and those that a run recorded."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from harness.config.digest import PARAMETERS, plugins
from harness.config.errors import explained
from harness.config.names import renamed_in, todays_names, write
from harness.config.removed import drop_removed, refuse_removed
from harness.config.run import Config
from harness.errors import UserError


def parse(composed: dict[str, Any]) -> Config:
    """The config that Hydra composed, checked. Raises UserError naming each key that is wrong and why."""
    if old := renamed_in(composed):
        raise UserError("\n".join(f"{key}: renamed; write {write(key)}" for key in old))
    refuse_removed(composed)
    return _validated(todays_names(composed))


def parse_recorded(values: dict[str, Any]) -> Config:
    """The config that a run has recorded, by this version or an earlier one. Raises UserError as `parse` does.

    A key under a former name is read as its name today. A key that the file lacks has its default: what runs did before. A key
    that is gone is left out, and refused unless it has its default.
    """
    values = todays_names(values)
    drop_removed(values)
    return _validated(values)


def recorded(values: dict[str, Any]) -> dict[str, Any]:
    """The config that a run has recorded, with the keys of today; all defaults filled in. Raises UserError as `parse` does."""
    return parse_recorded(values).model_dump(mode="json")


def _validated(values: dict[str, Any]) -> Config:
    for plugin, parameters in plugins(values):
        for key, default in PARAMETERS.get(plugin, {}).items():
            parameters.setdefault(key, default)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise UserError("\n".join(explained(error, values))) from None
