"""The presets of verl's RolloutCorrectionConfig under the names that they had before 0.7, as the keys that they set there.

`experiments/conf/correction/verl_2025` has the same as options. The presets of verl 0.9.1 are `experiments/conf/correction/verl`.
"""

from __future__ import annotations

from typing import Any

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
"""The ten of pull request 3984."""

DECEMBER: dict[str, dict[str, Any]] = {
    "decoupled_token_is": TOKEN,
    "decoupled_seq_is": SEQUENCE,
    "decoupled_seq_is_rs": SEQUENCE | REJECTED,
    "decoupled_geo_rs": GEOMETRIC,
    "pg_is": SEQUENCE | GRADIENT,
    "pg_rs": GEOMETRIC | GRADIENT,
}
"""Those that pull request 4070 renamed or added."""

PRESETS = NOVEMBER | DECEMBER
