"""Fault `swapped`: log μ and log π are exchanged, or the trainer's policy sampled."""

from algos.diagnostics.evidence import Statistics
from algos.faults.base import FILTERED, Fault, beyond

ABOVE = 4.5
"""Minimum number of normal deviates by which E[π/μ] exceeds 1, for the fault; 3.9 was the maximum without a fault."""
LIKELIHOOD = 12.7
"""Minimum Σ(log π − log μ) over the batch's tokens, in nats, for the fault if E[π/μ] is not `ABOVE` deviates above 1. If μ
sampled them, the sum reaches 12.7 with probability e^-12.7 = 3e-6 at most, that of 4.5 deviates, however heavy the tails are."""
CHI2 = 0.8
"""Minimum of (E[π/μ] − 1)/K3 for the fault: if log μ and log π are exchanged, E[π/μ] − 1 is χ², about 2·K3."""
EXACT = 3.0
"""Maximum number of normal deviates of E[μ/π] from 1 for the fault: the mean is 1 if log μ and log π are exchanged."""


def _signature(s: Statistics) -> float | None:
    if not abs(s["identity/swapped_z"]) <= EXACT or not s["identity/k1"] < 0 or s["tails/k3"] <= 0:
        return None
    deviates = max(s["identity/z"], s["identity/drawn_z"]) / ABOVE
    chi2 = (s["identity/mean"] - 1) / s["tails/k3"] / CHI2
    return beyond(max(deviates, s["identity/likelihood"] / LIKELIHOOD), chi2)


def _evidence(s: Statistics) -> str:
    return (
        f"the mean ratio is {s['identity/mean']:.4f}, and 1/ratio has the mean {s['identity/swapped']:.4f} "
        f"(z {s['identity/drawn_z']:.1f} and {s['identity/swapped_z']:.1f}); the tokens are "
        f"{s['identity/likelihood']:.0f} nats likelier by the trainer's column than by the sampler's"
    )


FAULT = Fault(
    "swapped",
    "a",
    80,
    _signature,
    _evidence,
    {
        "verl": "rollout_log_probs against old_log_probs in the dump",
        "SkyRL": "rollout_logprobs against action_log_probs",
        "TRL": "sampling_per_token_logps against old_per_token_logps",
        "yours": "which column is logp_rollout: the sampler's",
        "vLLM": "--logprobs-mode: raw_logprobs at a temperature of 0.95 to 1.05 looks the same; set processed_logprobs",
        "filters": FILTERED,
    },
    "critical",
)
