"""Fault `duplicates`: equal responses occur in the batch more often than sampling would produce them."""

from algos.diagnostics.evidence import Statistics
from algos.faults.base import SURE, Fault, beyond

TIMES, FEWEST = 1.35, 10.0
"""More pairs of equal responses than TIMES·expected + FEWEST show the fault. Sound batches had up to 1.1·expected."""
MANY = 3.0
"""More pairs of equal responses than MANY·expected + FEWEST show the fault even without a standard error."""
SHARE = 0.03
"""Minimum share of responses that repeat an earlier one, for the fault to be reported."""


def _signature(s: Statistics) -> float | None:
    most = TIMES * s["duplicates/expected"] + FEWEST
    many = s["duplicates/found"] / (MANY * s["duplicates/expected"] + FEWEST)
    sure = max(many, s["duplicates/z"] / SURE)  # `many` alone where too few prompts give no error
    return beyond(s["duplicates/found"] / most, s["duplicates/repeated"] / SHARE, sure)


def _evidence(s: Statistics) -> str:
    return (
        f"{s['duplicates/repeated']:.0%} of the responses repeat another to the last bit: {s['duplicates/found']:.0f} pairs, "
        f"where the sampler's odds give {s['duplicates/expected']:.1f}"
    )


FAULT = Fault(
    "duplicates",
    "a",
    95,
    _signature,
    _evidence,
    {
        "verl": "a seed that every sample of a prompt shares, or a batch that was padded by repeating rows",
        "SkyRL": "generator.sampling_params.temperature: 0 is greedy, all samples are then one",
        "TRL": "generation_kwargs with a seed",
        "vLLM": "SamplingParams.seed, and n in place of repeated requests with one seed",
    },
    "high",
)
