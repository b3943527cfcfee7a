"""The source of the mismatch between a run's rollout engine and its trainer, read from the run's config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.arms import NONE, Arm
from harness.config import PrecisionConfig
from harness.config.digest import PARAMETERS, section

NOISES = ("noise", "router_noise")
"""Config keys of the local engine that add noise as a synthetic mismatch."""
DOSE = [f"rollout.engine.{key}" for key in (*NOISES, *(f"{noise}_persistence" for noise in NOISES), "noise_seed")]
"""Config keys that define synthetic noise: its size, its correlation between versions of the weights, and its seed."""
FP32 = PrecisionConfig(name="fp32", compute="fp32", weights=None, activations=None).model_dump(mode="json")
ENGINE = {key: value for key, value in PARAMETERS["rollout.engine=local"].items() if key != "noise_seed"}
EXACT: dict[str, Any] = {
    "rollout.engine.name": "local",
    **{f"rollout.engine.{key}": value for key, value in ENGINE.items()},
    **{f"rollout.precision.{key}": value for key, value in FP32.items()},
    "rollout.kv_cache": "compute",
    "rollout.staleness": 0,
    "rollout.partial_tokens": None,
    "actor.dtype": "fp32",
    "actor.masters": "fp32",
    "actor.lora": None,
    "actor.precision": None,
}
"""Config keys that decide the source of a mismatch, with their values in an FP32 run without any mismatch."""


def deviations(config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a complete config that differ from those in EXACT, an FP32 run without any mismatch, by config key.

    A key that the config lacks, because an older version wrote it, does not differ.
    """
    found = {}
    for key, neutral in EXACT.items():
        place, _, name = key.rpartition(".")
        value = section(dict(config), place).get(name, neutral)
        if value != neutral:
            found[key] = value
    return found


def source_of(config: Mapping[str, Any]) -> str:
    """The source of a run's mismatch in words: precision, 8-bit cache, noise, age of the weights, partial rollouts, others."""
    rollout = config["rollout"]
    cache, stale = rollout["kv_cache"], rollout["staleness"]
    cached = [f"{cache} cache"] if cache != "compute" else []
    aged = [f"{stale} step{'s' if stale > 1 else ''} stale"] if stale else []
    partial = [f"parts of {tokens} tokens"] if (tokens := rollout.get("partial_tokens")) else []
    return ", ".join([rollout["precision"]["name"], *cached, *_noises(rollout["engine"]), *aged, *partial, *_others(config)])


def is_control(config: Mapping[str, Any], arm: Arm) -> bool:
    """Whether a run is a control: uncorrected, with rollouts that differ from the trainer at most by the age of their weights.

    Number formats are compared, not the names of precisions. A 16-bit run in another engine uses other kernels, which is a
    mismatch; in FP32 their difference is negligible. Weights without FP32 masters count as a source of mismatch, and so do
    low-rank adapters that are merged at a sync.
    """
    rollout, actor = config["rollout"], config["actor"]
    own = _formats(actor.get("precision") or {"compute": actor["dtype"]})
    same = _formats(rollout["precision"]) == own and rollout["kv_cache"] == "compute"
    exact = not _noises(rollout["engine"]) and not _others(config)
    return arm.correction == NONE and same and exact and (own == _formats({}) or rollout["engine"]["name"] == "local")


def _formats(precision: Mapping[str, Any]) -> dict[str, Any]:
    """The number formats of a precision without its name. A key that it lacks has its value in FP32."""
    return {key: precision.get(key, value) for key, value in FP32.items() if key != "name"}


def _others(config: Mapping[str, Any]) -> list[str]:
    """Words, such as `masters none`, for engine parameters (not noise), masters and adapters unlike an exact FP32 run's."""
    named = [f"rollout.engine.{key}" for key in ENGINE if key.removesuffix("_persistence") not in NOISES] + ["actor.masters"]
    found = deviations(config)
    sync = (found.get("actor.lora") or {}).get("sync", "apart")
    words = [f"{key.rpartition('.')[2].replace('_', ' ')} {found[key]}" for key in named if key in found]
    return words if sync == "apart" else [*words, f"LoRA {sync.replace('_', ' ')}"]


def _noises(engine: Mapping[str, Any]) -> list[str]:
    parts = []
    for key in NOISES:
        size, persistence = engine.get(key), engine.get(f"{key}_persistence")
        if isinstance(size, int | float) and size:
            lasting = f" of persistence {persistence:g}" if isinstance(persistence, int | float) and persistence else ""
            parts.append(f"{key.replace('_', ' ')} {size:g}{lasting}")
    return parts
