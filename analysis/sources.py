"""The source of the mismatch between a run's rollout engine and its trainer, read from the run's config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.arms import NONE, Arm

NOISES = ("noise", "router_noise")
"""Config keys of the local engine that add noise as a synthetic mismatch."""
DOSE = [f"rollout.engine.{key}" for key in (*NOISES, *(f"{noise}_persistence" for noise in NOISES), "noise_seed")]
"""Config keys that define synthetic noise: its size, its persistence and its seed."""


def source_of(config: Mapping[str, Any]) -> str:
    """The source of a run's mismatch in words: precision, 8-bit cache, noise and persistence, staleness, partial rollouts."""
    rollout = config["rollout"]
    cache, stale = rollout["kv_cache"], rollout["staleness"]
    cached = [f"{cache} cache"] if cache != "compute" else []
    aged = [f"{stale} step{'s' if stale > 1 else ''} stale"] if stale else []
    partial = [f"parts of {tokens} tokens"] if (tokens := rollout.get("partial_tokens")) else []
    return ", ".join([rollout["precision"]["name"], *cached, *_noises(rollout["engine"]), *aged, *partial])


def is_control(config: Mapping[str, Any], arm: Arm) -> bool:
    """Whether a run is a control: uncorrected, with rollouts that differ from the trainer at most by the age of their weights.

    A 16-bit run in another engine uses other kernels, which is a mismatch. In fp32 the difference is negligible.
    """
    rollout, actor = config["rollout"], config["actor"]
    own = (actor.get("precision") or {"name": actor["dtype"]})["name"]
    same = rollout["precision"]["name"] == own and rollout["kv_cache"] == "compute" and not _noises(rollout["engine"])
    return arm.correction == NONE and same and (own == "fp32" or rollout["engine"]["name"] == "local")


def _noises(engine: Mapping[str, Any]) -> list[str]:
    parts = []
    for key in NOISES:
        size, persistence = engine.get(key), engine.get(f"{key}_persistence")
        if isinstance(size, int | float) and size:
            lasting = f" of persistence {persistence:g}" if isinstance(persistence, int | float) and persistence else ""
            parts.append(f"{key.replace('_', ' ')} {size:g}{lasting}")
    return parts
