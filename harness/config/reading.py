"""Parsing of nested dictionaries into a Config: a config that Hydra has composed, or one that a run has recorded."""

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
    """Check and parse a config that Hydra composed. Raises UserError naming each wrong key and the reason."""
    if old := renamed_in(composed):
        raise UserError("\n".join(f"{key}: renamed; write {write(key)}" for key in old))
    refuse_removed(composed)
    return _validated(todays_names(composed))


def parse_recorded(values: dict[str, Any]) -> Config:
    """Parse the config that a run of this or an earlier version recorded. Raises UserError naming each wrong key.

    A renamed key is read under its present name. A missing key gets its default. A removed key is dropped at its default, else
    refused.
    """
    values = todays_names(values)
    drop_removed(values)
    return _validated(values)


def recorded(values: dict[str, Any]) -> dict[str, Any]:
    """Return the recorded config of a run under the present keys, with all defaults. Raises UserError on a wrong key."""
    return parse_recorded(values).model_dump(mode="json")


def _validated(values: dict[str, Any]) -> Config:
    for plugin, parameters in plugins(values):
        for key, default in PARAMETERS.get(plugin, {}).items():
            parameters.setdefault(key, default)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise UserError("\n".join(explained(error, values))) from None
