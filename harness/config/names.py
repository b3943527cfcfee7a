"""Renamed keys, in both directions: files of old runs are read, and runs keep their digests."""

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
"""Former key, dots between -> its name today, in the same section. A recorded file may have either."""


def todays_names(values: dict[str, Any]) -> dict[str, Any]:
    """A copy of the nested `values` with renamed keys under their names of today."""
    return _named(values, RENAMED)


def first_names(values: dict[str, Any]) -> dict[str, Any]:
    """A copy of the nested `values` with renamed keys under their first names."""
    return _named(values, {write(old): old.rpartition(".")[2] for old in RENAMED})


def renamed_in(values: dict[str, Any], prefix: str = "") -> list[str]:
    """Keys of the nested `values`, dots between, that have another name today."""
    found = []
    for key, value in values.items():
        found += [f"{prefix}{key}"] if f"{prefix}{key}" in RENAMED else []
        found += renamed_in(value, f"{prefix}{key}.") if isinstance(value, dict) else []
    return found


def write(old: str) -> str:
    """The name of today, dots between, of a key in RENAMED."""
    return f"{old.rpartition('.')[0]}.{RENAMED[old]}"


def _named(values: dict[str, Any], names: dict[str, str], prefix: str = "") -> dict[str, Any]:
    return {
        names.get(f"{prefix}{key}", key): _named(value, names, f"{prefix}{key}.") if isinstance(value, dict) else value
        for key, value in values.items()
    }
