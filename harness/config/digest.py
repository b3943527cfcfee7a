"""The digest of a config, which names its run folder. Adding or renaming a key changes no digest.

A digest is the SHA-256 of all keys that decide the result, as JSON. A later version must find a finished run again. Therefore
- a key enters under its first name, see `harness.config.names`;
- a removed key still enters where every digest contained it;
- a key that was added later is left out while it has its default, which keeps the behaviour of runs from before the key.
The default of a later key therefore never changes. New runs get their values from experiments/conf, which may change. A value
that differs from the default also changes the digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from pydantic import BaseModel

from harness.config.names import first_names

FIRST: dict[str, set[str]] = {
    "Config": {"kl", "diagnostics"},
    "RolloutConfig": {"top_p", "top_k", "staleness"},
    "ActorConfig": {"epochs", "micro_tokens", "gradient_checkpointing"},
    "KlConfig": {"name", "coef"},
    "EvaluationConfig": {"probe", "policy"},
    "DiagnosticsConfig": {"every"},
    "Correction": {"ratio", "weight", "reject", "normalize", "denominator"},
    "Weight": {"level", "action", "lower", "upper"},
    "Reject": {"statistic", "lower", "upper", "when"},
    "Plugin": {"params"},
    "rollout.engine=local": {"noise"},
    "rollout.engine=vllm": {"sleep", "sync_tolerance"},
}
"""Section class or plug-in -> keys with a default that enter every digest, because they are older than this module."""

HELD: dict[str, dict[str, Any]] = {"": {"baseline": "all"}, "kl": {"reference": "start"}, "rollout": {"overlap": False}}
"""Section ("" for the top level) -> removed keys, with the default of each, which still enters every digest."""

PARAMETERS: dict[str, dict[str, Any]] = {
    "rollout.engine=local": {
        "noise": 0.0,
        "noise_persistence": 0.0,
        "router_noise": 0.0,
        "router_noise_persistence": 0.0,
        "noise_seed": 0,
        "router_dtype": "compute",
        "head_dtype": "compute",
        "kv_at_sync": "recompute",
        "kv_scale": "one",
        "kv_percentile": 100.0,
    },
    "rollout.engine=vllm": {"sleep": False, "eager": False, "sync_tolerance": None},
    "loss=dppo": {"upper": None},
    "collapse.detectors=weights": {"std": None, "veto": None},
}
"""Plug-in -> parameters with their defaults. At its default a parameter enters no digest, unless FIRST lists it. The defaults are
listed here because reading them from a signature would import torch.

A plug-in is written as `loss=ppo`, `advantage=grpo`, `rollout.engine=local`, `collapse.detectors=drawdown`,
`correction.reject=m2po` or `task=package.module:Class`."""


def digest(config: BaseModel, *, include: Collection[str] = (), exclude: Collection[str] = ()) -> str:
    """Return the digest of a config, 12 hex digits. Only the sections `include` enter (empty: all), less those in `exclude`."""
    values = config.model_dump(mode="json")
    _leave_out_defaults(config, values)
    for plugin, parameters in plugins(values):
        for key, default in PARAMETERS.get(plugin, {}).items():
            if key not in FIRST.get(plugin, ()) and key in parameters and parameters[key] == default:
                del parameters[key]
    for place, gone in HELD.items():
        (section(values, place) if place else values).update(gone)
    counted = {key: value for key, value in values.items() if (not include or key in include) and key not in exclude}
    return hashlib.sha256(json.dumps(first_names(counted), sort_keys=True).encode()).hexdigest()[:12]


def plugins(values: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (name, parameters) of each plug-in that a config chooses, such as loss=gspo. values: the config as nested dicts."""
    for path in ("task", "advantage", "loss", "rollout.engine"):
        parameters = section(values, path)
        yield f"{path}={parameters.get('name')}", parameters
    for name in (detectors := section(values, "collapse.detectors")):
        yield f"collapse.detectors={name}", section(detectors, name)
    for filter_ in section(values, "correction.reject").values():
        if isinstance(filter_, dict):
            yield f"correction.reject={filter_.get('function')}", section(filter_, "params")


def section(values: dict[str, Any], path: str) -> dict[str, Any]:
    """The nested dictionary at the dotted path `path`; an empty one if there is none."""
    here: Any = values
    for key in path.split("."):
        here = here.get(key) if isinstance(here, dict) else None
    return here if isinstance(here, dict) else {}


def _leave_out_defaults(part: Any, values: Any) -> None:
    """Delete from `values`, the dump of `part`, every key that has its default and is not listed in FIRST."""
    if isinstance(part, dict):
        for key, value in part.items():
            _leave_out_defaults(value, values[key])
    elif isinstance(part, BaseModel) or is_dataclass(part):
        first = FIRST.get(type(part).__name__, set())
        for key, default in _defaults(part).items():
            if key not in first and getattr(part, key) == default:
                del values[key]
        for key in values:
            _leave_out_defaults(getattr(part, key), values[key])


def _defaults(part: Any) -> dict[str, Any]:
    if isinstance(part, BaseModel):
        known = type(part).model_fields.items()
        return {key: field.get_default(call_default_factory=True) for key, field in known if not field.is_required()}
    values = {field.name: field.default for field in fields(part) if field.default is not MISSING}
    return values | {field.name: field.default_factory() for field in fields(part) if field.default_factory is not MISSING}
