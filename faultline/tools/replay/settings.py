"""Settings of verl 0.9.1, SkyRL 0.3.0, TRL 1.16.0 and this project that choose a correction.

verl's and SkyRL's include the keys that record log μ, without which they apply no weight. TRL records it with use_vllm=True.
"""

from __future__ import annotations

VERL = "algorithm.rollout_correction"
SKYRL = "trainer.algorithm.off_policy_correction"


def settings(level: str, upper: float) -> dict[str, list[str]]:
    """Map each framework to its settings for w = min(π_old/μ, `upper`) per token or sequence. TRL's are keyword arguments."""
    c = f"{upper:g}"
    return {
        "verl": [
            "actor_rollout_ref.rollout.calculate_log_probs=True",
            f"{VERL}.bypass_mode=False",
            f"{VERL}.rollout_is={level}",
            f"{VERL}.rollout_is_threshold={c}",
        ],
        "SkyRL": [
            "generator.sampling_params.logprobs=1",
            f"{SKYRL}.tis_ratio_type={level}",
            f"{SKYRL}.{level}_tis_ratio_clip_high={c}",
        ],
        "TRL": [f'vllm_importance_sampling_mode="{level}_truncate"', f"vllm_importance_sampling_clip_max={c}"],
        "Faultline": [f"correction={level}_truncate", f"correction.weight.upper={c}"],
    }


def arm_settings(arm: str) -> dict[str, list[str]]:
    """Map each framework that offers the correction `arm` (token, sequence, mask or geometric) to settings that choose it."""
    match arm:
        case "mask":
            trl = ['vllm_importance_sampling_mode="sequence_mask"', "vllm_importance_sampling_clip_max=2"]
            return {"TRL": trl, "Faultline": ["correction=sequence_mask"]}
        case "geometric":
            return {"Faultline": ["correction=geometric_token_mask"]}
        case _:
            return settings(arm, 2.0)
