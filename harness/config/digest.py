"""The digest of a config, by which its run folder is named. A new key or a new name for a key changes no digest.

A digest is the SHA-256 of what decides the result, as JSON. So that a finished run is found again by a later version,
- a key has the name that it had first, see `harness.config.names`;
- a key that is gone counts as before where every digest held it;
- a key that came later is left out while it has its default, which is what runs did before it was there.
The default of a later key therefore never changes. What new runs get stands in experiments/conf and may change: the value then
differs from the default, and so does the digest.
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
"""Class of a section, or a plug-in -> keys with a default that every digest holds: they are older than the rule above."""

HELD: dict[str, dict[str, Any]] = {
    "": {"baseline": "all"},
    "kl": {"reference": "start"},
    "rollout": {"overlap": False},
}
"""Section, "" for the whole -> keys that are gone, with the value that a digest still holds.

Every digest held them at their defaults. `removed.REMOVED` says why they left.
"""

PARAMETERS: dict[str, dict[str, Any]] = {
    "rollout.engine=local": {
        "noise": 0.0,
        "noise_persistence": 0.0,
        "router_noise": 0.0,
        "router_noise_persistence": 0.0,
        "noise_seed": 0,
        "router_dtype": "compute",
        "head_dtype": "compute",
    },
    "rollout.engine=vllm": {
        "sleep": False,
        "sync_tolerance": None,
    },
    "loss=dppo": {"upper": None},
}
"""Plug-in -> parameters that it got later, with their defaults. A signature cannot be read without torch.

A plug-in is written as `loss=ppo`, `advantage=grpo`, `rollout.engine=local`, `collapse.detectors=drawdown`,
`correction.reject=m2po` or `task=package.module:Class`.
"""


def digest(config: BaseModel, *, include: Collection[str] = (), exclude: Collection[str] = ()) -> str:
    """The digest of a config, 12 hex digits. include: the sections that count, none for all. exclude: those that do not count."""
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
    """The plug-ins in the nested `values` of a config, as PARAMETERS names them, each with the dictionary of its parameters."""
    for path in ("task", "advantage", "loss", "rollout.engine"):
        parameters = section(values, path)
        yield f"{path}={parameters.get('name')}", parameters
    for name in (detectors := section(values, "collapse.detectors")):
        yield f"collapse.detectors={name}", section(detectors, name)
    for filter_ in section(values, "correction.reject").values():
        if isinstance(filter_, dict):
            yield f"correction.reject={filter_.get('function')}", section(filter_, "params")


def section(values: dict[str, Any], path: str) -> dict[str, Any]:
    """The dictionary at `path`, dots between, or an empty one if there is none."""
    here: Any = values
    for key in path.split("."):
        here = here.get(key) if isinstance(here, dict) else None
    return here if isinstance(here, dict) else {}


def _leave_out_defaults(part: Any, values: Any) -> None:
    """Delete from `values`, the dump of `part`, every key outside of FIRST that has its default."""
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
