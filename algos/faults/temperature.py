"""Fault `temperature`: the trainer's temperature differs from that of the sampler, whose logged numbers are right."""

from algos.diagnostics.evidence import Statistics
from algos.faults.base import OFF, PRIME, SKYRL, TRL, VERL, VLLM_MODE, Fault, beyond

EXPLAINED = 0.3
"""Minimum share of the variance of logit π − logit μ that the regression of logit π on logit μ explains, for the fault. The
maximum was 0.09 without a fault, and 0.43 with old weights."""


def _signature(s: Statistics) -> float | None:
    if not s["slope/temperature"] > 0:
        return None  # the quotient of two temperatures is positive; weights that were not loaded may turn the line round
    above = s["slope/temperature"] > 1
    end = "slope/temperature" if above else "slope/temperature_most"  # the end nearer to 1 of what noise leaves possible
    off = s[end] - 1 if above else 1 - s[end]
    return beyond(off / OFF, off / (6 * s[f"{end}_error"] + 1e-12), s["slope/temperature_explained"] / EXPLAINED)


def _evidence(s: Statistics) -> str:
    slope, error, most = (s[f"slope/temperature{end}"] for end in ("", "_error", "_most"))
    return (
        f"the trainer's logits are {slope:.2f} ± {error:.2f} times the sampler's, and at most {most:.2f} if noise lowers this; "
        f"the line explains {s['slope/temperature_explained']:.0%} of their difference: one side divides by a temperature that "
        "the other does not have"
    )


FAULT = Fault(
    "temperature",
    "b",
    20,
    _signature,
    _evidence,
    {
        "vLLM": "temperature of SamplingParams, and " + VLLM_MODE,
        "verl": "actor_rollout_ref.rollout.temperature: the trainer divides its logits by it, too",
        "SkyRL": "generator.sampling_params.temperature against that of the trainer's forward",
        "TRL": "temperature",
        "prime-rl": "temperature of the sampling: the trainer gets it with each sample",
    },
    "critical",
    (f"{VERL} rollout.yaml and pull 4252", f"{SKYRL} config.py:1004", f"{TRL} issue 4159", f"{PRIME} orchestrator.py:47"),
)
