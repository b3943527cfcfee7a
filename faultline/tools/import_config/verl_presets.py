"""The presets of verl's RolloutCorrectionConfig, as verl's keys. Here they are correction=verl/… and verl_2025/…."""

from __future__ import annotations

import re
from typing import Any

from faultline.tools.import_config.translation import unusable

TOKEN: dict[str, Any] = {"rollout_is": "token", "rollout_is_threshold": 2.0}
SEQUENCE: dict[str, Any] = {"rollout_is": "sequence", "rollout_is_threshold": 2.0}
REJECTED: dict[str, Any] = {"rollout_rs": "sequence", "rollout_rs_threshold": 2.0}
GEOMETRIC: dict[str, Any] = {
    "rollout_rs": "geometric", "rollout_rs_threshold": 1.001, "rollout_token_veto_threshold": 1e-4,
}  # fmt: skip
BYPASS: dict[str, Any] = {"bypass_mode": True}
GRADIENT: dict[str, Any] = {"bypass_mode": True, "use_policy_gradient": True}

NOVEMBER: dict[str, dict[str, Any]] = {
    "token_is": TOKEN,
    "token_tis": TOKEN,
    "seq_is": SEQUENCE,
    "seq_is_rs": SEQUENCE | REJECTED,
    "seq_mis": SEQUENCE | REJECTED | {"rollout_rs_threshold_lower": 0.0},
    "geo_rs": GEOMETRIC,
    "geo_mis": GEOMETRIC | {"rollout_rs_threshold_lower": 0.999},
    "ppo_is_bypass": TOKEN | BYPASS,
    "pure_is": SEQUENCE | GRADIENT,
    "disabled": {},
}
"""The ten presets that verl's pull request 3984 introduced."""

DECEMBER: dict[str, dict[str, Any]] = {
    "decoupled_token_is": TOKEN,
    "decoupled_seq_is": SEQUENCE,
    "decoupled_seq_is_rs": SEQUENCE | REJECTED,
    "decoupled_geo_rs": GEOMETRIC,
    "pg_is": SEQUENCE | GRADIENT,
    "pg_rs": GEOMETRIC | GRADIENT,
}
"""Presets that verl's pull request 4070 renamed or added."""

GEO: dict[str, Any] = {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.999_1.001"}
K3: dict[str, Any] = {"rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.01}
CLIPPED: dict[str, Any] = BYPASS | {"loss_type": "ppo_clip"}
REINFORCE: dict[str, Any] = BYPASS | {"loss_type": "reinforce"}

JANUARY: dict[str, dict[str, Any]] = {
    "decoupled_token_is": TOKEN,
    "decoupled_seq_is": SEQUENCE,
    "decoupled_seq_is_rs": SEQUENCE | {"rollout_rs": "seq_sum_k1", "rollout_rs_threshold": "0.5_2.0"},
    "decoupled_geo_rs": GEO,
    "decoupled_geo_rs_seq_tis": SEQUENCE | GEO,
    "decoupled_geo_rs_token_tis": TOKEN | GEO,
    "decoupled_k3_rs": K3,
    "decoupled_k3_rs_seq_tis": SEQUENCE | K3,
    "decoupled_k3_rs_token_tis": TOKEN | K3,
    "bypass_ppo_clip": CLIPPED,
    "bypass_ppo_clip_geo_rs": GEO | CLIPPED,
    "bypass_ppo_clip_k3_rs": K3 | CLIPPED,
    "bypass_pg_is": SEQUENCE | REINFORCE,
    "bypass_pg_geo_rs": GEO | REINFORCE,
    "bypass_pg_geo_rs_seq_tis": SEQUENCE | GEO | REINFORCE,
    "bypass_pg_geo_rs_token_tis": TOKEN | GEO | REINFORCE,
}
"""Presets of verl's pull requests 4511 and 4544, with the option names of 2026."""

PRESETS = JANUARY | NOVEMBER | DECEMBER
PARAMETERS = {
    "threshold": "rollout_is_threshold",
    "is_threshold": "rollout_is_threshold",
    "rs_threshold": "rollout_rs_threshold",
    "rs_threshold_lower": "rollout_rs_threshold_lower",
    "veto_threshold": "rollout_token_veto_threshold",
}
"""Parameter of a verl preset -> the config key that it sets."""
CALL = re.compile(r"(?:RolloutCorrectionConfig\.)?(\w+)(?:\((.*)\))?", re.S)


def expand(key: str, preset: str) -> tuple[dict[str, Any], list[str]]:
    """Expand a verl preset, NAME or NAME(PARAMETER=VALUE, ...). Returns (the keys that it sets, notes for the reader).

    A name of both years means the preset of 2025, unless a parameter fits only that of 2026, such as rs_threshold="0.5_2.0".
    Raises UserError on an unknown name, and on a parameter that the preset does not have.
    """
    match = CALL.fullmatch(preset)
    name = match[1] if match else preset
    if match is None or name not in PRESETS:
        unusable(f"{key}={preset}", f"accepted are sections and {', '.join(PRESETS)}, parameters as in token_tis(threshold=2.0)")
    given = dict(_parameter(key, preset, part) for part in (match[2] or "").split(",") if part.strip())
    pair = "_" in str(given.get("rollout_rs_threshold", ""))
    keys = JANUARY[name] if name in JANUARY and (pair or name not in NOVEMBER | DECEMBER) else PRESETS[name]
    if wrong := [parameter for parameter in given if parameter not in keys and parameter != "rollout_rs_threshold_lower"]:
        unusable(f"{key}={preset}", f"{name} sets no {', '.join(wrong)}")
    both = name in JANUARY and name in DECEMBER and JANUARY[name] != DECEMBER[name] and not pair
    if not both:
        return {**keys, **given}, []
    bounds = JANUARY[name]["rollout_rs_threshold"]
    return {**keys, **given}, [f"{key}={name}: that of 2025; for verl of 2026 write {name}(rs_threshold={bounds})"]


def _parameter(key: str, preset: str, text: str) -> tuple[str, Any]:
    name, _, value = (part.strip().strip("\"'") for part in text.partition("="))
    if name not in PARAMETERS or not value:
        unusable(f"{key}={preset}", f"parameters are {', '.join(PARAMETERS)}, each as threshold=2.0")
    return PARAMETERS[name], None if value in ("None", "null") else value
