"""Fault `swapped`: the two columns are exchanged, or the trainer's policy sampled."""

from algos.diagnostics.evidence import Statistics
from algos.faults.base import Fault, beyond

SURE = 4.5
"""Minimum normal deviates of E[ρ] above 1; 3.9 was the maximum without a fault."""
CHI2 = 0.8
"""Minimum of (E[ρ] − 1)/K3: exchanged columns have E[π/μ] − 1 = χ², about 2·K3."""
EXACT = 3.0
"""Maximum normal deviates of E[1/ρ] from 1: exchanged columns obey E[1/ρ] = 1."""


def _signature(s: Statistics) -> float | None:
    if not abs(s["identity/swapped_z"]) <= EXACT or not s["identity/k1"] < 0 or s["tails/k3"] <= 0:
        return None
    deviates = s["identity/z"] / SURE
    chi2 = (s["identity/mean"] - 1) / s["tails/k3"] / CHI2
    heavy = -s["identity/k1_z"] / 4.0  # a heavy tail hides E[ρ] in its own error, and leaves K1
    return beyond(max(deviates, heavy), chi2)


def _evidence(s: Statistics) -> str:
    return (
        f"the mean ratio is {s['identity/mean']:.4f} (z {s['identity/z']:.1f}), and 1/ratio has the mean "
        f"{s['identity/swapped']:.4f} (z {s['identity/swapped_z']:.1f}); K1 is {s['identity/k1']:.2g}, below 0"
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
    },
    "critical",
)
