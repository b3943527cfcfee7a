"""Fault `shift`: log μ and log π are out of step by one token."""

from algos.diagnostics.evidence import Statistics
from algos.faults.base import PRIME, Fault, beyond

SHARE = 0.05
"""Minimum share of responses whose log μ is nearer to log π one token away that shows the fault; sound batches had 0."""


def _signature(s: Statistics) -> float | None:
    return beyond(s["alignment/shifted"] / SHARE, s["alignment/shifted"] / max(s["alignment/permuted"], 1e-9))


def _evidence(s: Statistics) -> str:
    r = max(s["alignment/correlation_next"], s["alignment/correlation_last"])
    return (
        f"{s['alignment/shifted']:.0%} of the responses fit one token apart; the correlation of the columns is {r:.3f} there and "
        f"{s['alignment/correlation']:.3f} at the token"
    )


FAULT = Fault(
    "shift",
    "a",
    40,
    _signature,
    _evidence,
    {
        "verl": "that both columns give the log-probability of the token at its own place, not of the next one",
        "SkyRL": "that rollout_logprobs and action_log_probs begin at the first response token",
        "TRL": "that sampling_per_token_logps begins at the first completion token",
        "prime-rl": "labels of the trainer's forward: a pull request that shifted them had this fault in review (1525)",
    },
    "critical",
    (f"{PRIME} pull 1525",),
)
