"""Fault `stale`: the weights with which the sampler generated are older than reported."""

from algos.diagnostics.evidence import Statistics
from algos.faults.base import PRIME, SKYRL, TRL, VERL, Fault, beyond

CORRELATION = 0.37
"""Correlation of a response's mean log π − log μ with its advantage that shows the fault; fresh weights had at most 0.335."""
FOLLOWED = 4.5
"""Minimum normal deviate of that correlation for the fault."""
EXPLAINED = 0.6
"""A mismatch is called stale only if a line in logit μ explains less than this share of the variance of logit π − logit μ."""


def _signature(s: Statistics) -> float | None:
    if s["size/lag"] > 0 or not s["slope/temperature_explained"] < EXPLAINED:
        return None
    return beyond(s["drift/correlation"] / CORRELATION, s["drift/z"] / FOLLOWED)


def _evidence(s: Statistics) -> str:
    return (
        f"the log ratio of responses follows their advantage: r = {s['drift/correlation']:.2f} (z {s['drift/z']:.1f}). "
        "The trainer has learned from such responses since these weights"
    )


FAULT = Fault(
    "stale",
    "b",
    15,
    _signature,
    _evidence,
    {
        "verl": "async_training.staleness_threshold, and whether each sync reaches every engine",
        "SkyRL": "trainer.fully_async.max_staleness_steps",
        "TRL": "max_staleness and weight_sync_steps of the asynchronous trainer",
        "prime-rl": "max_off_policy_steps",
        "Faultline": "rollout.staleness; give the versions of the tokens and this is no fault",
    },
    "high",
    (
        f"{VERL} fully_async_ppo_trainer.yaml:12",
        f"{SKYRL} config.py:951",
        f"{TRL} async_grpo_config.py:282",
        f"{PRIME} orchestrator.py:532",
    ),
)
