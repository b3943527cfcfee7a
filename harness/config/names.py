"""Renamed config keys: files of old runs remain readable under the new names, and old digests remain valid."""

from __future__ import annotations

from typing import Any

RENAMED = {
    "actor.minibatches": "num_minibatches",
    "actor.clip_norm": "max_grad_norm",
    "rollout.samples": "group_size",
    "model.hidden": "hidden_size",
    "model.layers": "num_hidden_layers",
    "model.heads": "num_attention_heads",
    "model.kv_heads": "num_key_value_heads",
    "model.mlp": "intermediate_size",
    "collapse.detectors.drawdown.m": "consecutive",
    "collapse.detectors.numerical.of": "hits_window",
    "collapse.detectors.distribution.m": "consecutive",
    "collapse.detectors.entropy.m": "consecutive",
    "collapse.detectors.length.m": "consecutive",
}
"""Former dotted key -> its present name, within the same section. A recorded file may contain either."""


def todays_names(values: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the nested `values` in which former keys have their present names."""
    return _named(values, RENAMED)


def first_names(values: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the nested `values` in which renamed keys have their first names."""
    return _named(values, {write(old): old.rpartition(".")[2] for old in RENAMED})


def renamed_in(values: dict[str, Any], prefix: str = "") -> list[str]:
    """Dotted keys of the nested `values` that have since been renamed."""
    found = []
    for key, value in values.items():
        found += [f"{prefix}{key}"] if f"{prefix}{key}" in RENAMED else []
        found += renamed_in(value, f"{prefix}{key}.") if isinstance(value, dict) else []
    return found


def write(old: str) -> str:
    """The present dotted name of a renamed key, which must be in RENAMED."""
    return f"{old.rpartition('.')[0]}.{RENAMED[old]}"


def _named(values: dict[str, Any], names: dict[str, str], prefix: str = "") -> dict[str, Any]:
    return {
        names.get(f"{prefix}{key}", key): _named(value, names, f"{prefix}{key}.") if isinstance(value, dict) else value
        for key, value in values.items()
    }
