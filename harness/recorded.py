"""A recorded config with the keys of today: what an older version did not know has the default that the run had in effect."""

from __future__ import annotations

import copy
from typing import Any

LATER: dict[str, Any] = {"kl.reference": "start"}
"""Keys that came later, with what runs did before."""
LATER_OF_LOCAL: dict[str, Any] = {"rollout.engine.noise": 0.0}
"""Likewise of the engine `local`."""


def recorded(values: dict[str, Any]) -> dict[str, Any]:
    """`values` with every key of today, unchanged where all are there."""
    values = copy.deepcopy(values)
    engine = values.get("rollout", {}).get("engine", {})
    for key, default in (LATER | (LATER_OF_LOCAL if engine.get("name") == "local" else {})).items():
        *sections, name = key.split(".")
        section = values
        for part in sections:
            section = section.get(part) if isinstance(section, dict) else None
        if isinstance(section, dict):
            section.setdefault(name, default)
    return values
