"""Fault `permuted`: log μ or log π of some responses are those of other responses of the batch."""

from algos.diagnostics.evidence import Statistics
from algos.faults.base import Fault, beyond, ratio, sampled

SHARE = 0.06
"""Minimum share of responses with log μ near another response's log π that shows the fault. Sound batches had at most 0.039, in a
task with few distinct values."""
LOST = 0.75
"""Minimum of (1 − r)/s for the fault to be reported: r correlates log μ and log π, s is the share of permuted responses. These
are uncorrelated, so they lower r by s. Old weights that made some responses look permuted gave 0.69."""


def _signature(s: Statistics) -> float | None:
    if sampled(s):
        return None
    lost = ratio(1 - s["alignment/correlation"], s["alignment/permuted"])
    return beyond(s["alignment/permuted"] / SHARE, lost / LOST)


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
