"""Fault `truncated_sampling`: the sampler is cut by top-p, top-k or min-p, and the trainer is not."""

from algos.diagnostics.evidence import Statistics
from algos.faults.base import FILTERED, PRIME, SIZE, SKYRL, SURE, TRL, VERL, VLLM, Fault, beyond, or_both_bases

ONE_SIDED = 0.15
"""Minimum of 1 − E[(ρ−1)+]/E[(1−ρ)+], ρ = π/μ, at which a mean ratio below 1 is attributed to truncation.
It is the share of E[(1−ρ)+] that ratios above 1 do not offset: 1 if the sampler is truncated and nothing else differs."""


def _signature(s: Statistics) -> float | None:
    return beyond(-s["identity/z"] / SURE, (1 - s["identity/mean"]) / SIZE, s["support/one_sided"] / ONE_SIDED)


def _evidence(s: Statistics) -> str:
    return (
        f"the mean ratio is {s['identity/mean']:.3f} (z {s['identity/z']:.0f}), as if the sampler kept {s['identity/mean']:.1%} "
        f"of the mass; {s['support/above']:.0%} of the ratios are above 1{or_both_bases(s)}"
    )


FAULT = Fault(
    "truncated_sampling",
    "b",
    10,
    _signature,
    _evidence,
    {
        "vLLM": "top_p, top_k and min_p of SamplingParams; return_sampling_mask gives the kept tokens",
        "verl": "actor_rollout_ref.rollout.top_p=1 and top_k=-1",
        "SkyRL": "generator.sampling_params.top_p=1.0, top_k=-1, min_p=0.0",
        "TRL": "top_p=1.0, top_k=0, min_p=None",
        "prime-rl": "the sampling of training sets top_p to 1.0; what extra_body adds",
        "filters": FILTERED,
        "Faultline": "rollout.replay_sampling_mask=true puts the trainer on the sampler's tokens",
    },
    "high",
    (
        VLLM, f"{VERL} rollout.yaml", f"{SKYRL} config.py:1004", f"{TRL} issue 6789, pull 7269", f"{PRIME} orchestrator.py:62",
        "modelscope/ms-swift pull 8442",
    ),
)  # fmt: skip
