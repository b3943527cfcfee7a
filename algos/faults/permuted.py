"""Fault `permuted`: rows of one column belong to other responses."""

from algos.diagnostics.evidence import Statistics
from algos.faults.base import Fault, beyond

SHARE = 0.06
"""Minimum share of responses that fit another row; 0.039 was the maximum without a fault, on a task of few values."""


def _signature(s: Statistics) -> float | None:
    return beyond(s["alignment/permuted"] / SHARE, 0.99 / max(s["alignment/correlation"], 1e-9))


def _evidence(s: Statistics) -> str:
    return f"{s['alignment/permuted']:.0%} of the responses fit the log-probabilities of another row and not those of their own"


FAULT = Fault(
    "permuted",
    "a",
    50,
    _signature,
    _evidence,
    {
        "verl": "batch balancing and reordering between the rollout and the log-probabilities of the trainer",
        "SkyRL": "the order of responses that the engines return against that of the prompts",
        "TRL": "the order in which processes gather completions",
    },
    "critical",
)
