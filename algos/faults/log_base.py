"""Fault `log_base`: log μ, log π or both are not in natural logarithms but in base 2 or 10."""

import math

from algos.diagnostics.evidence import Statistics
from algos.diagnostics.pairs import BASES
from algos.faults.base import Fault, beyond, both_bases, broken

NEAR = 0.06
"""Maximum relative distance of the slope of log π on log μ from that of base 2 or 10, for the fault to be reported."""
PART, EXACT = 0.5, 1e-3
"""A slope b is that of a base only if it is as near as noise leaves it: its relative distance is at most EXACT plus PART times
√(share that the line leaves)·|b − 1|/b. 27 sound dumps of SmolLM2 in another base had 0.31 of the latter at most. So with little
noise another factor is told from a base: log-probabilities, not logits, divided by a temperature of 0.7 have 1.429, not 1.443.
"""
LEFT = 0.15
"""Maximum share of E[(log π − log μ)²] that the line log π = b·log μ may leave for the fault to be reported. The minimum was 0.63
without a fault, and 0.21 with another temperature."""
ENOUGH = 2
"""Minimum number of tests that must fail with natural logarithms, and hold with both columns in another base, for the fault."""


def _guess(s: Statistics) -> tuple[str, str, float]:
    """The column and base that best explain the slope of log π on log μ: (column, base, relative distance of the slopes)."""
    slopes = [(column, base, slope) for base, log in BASES.items() for column, slope in (("rollout", log), ("trainer", 1 / log))]
    return min(((column, base, abs(s["slope/base"] / slope - 1)) for column, base, slope in slopes), key=lambda part: part[2])


def _one(s: Statistics) -> float | None:
    b, left = s["slope/base"], s["slope/base_left"]
    near = min(NEAR, EXACT + PART * math.sqrt(left) * abs(b - 1) / b) if b > 0 else 0.0
    return beyond(near / max(_guess(s)[2], 1e-9), LEFT / max(left, 1e-9))


def _both(s: Statistics) -> dict[str, int]:
    """Bases that one failed test may owe to other faults and two hardly: base -> number of failed tests, two or more."""
    return {base: failed for base, failed in both_bases(s).items() if failed >= ENOUGH}


def _signature(s: Statistics) -> float | None:
    return _one(s) or (1.0 if _both(s) else None)


def _evidence(s: Statistics) -> str:
    if not _one(s):
        bases, failed = _both(s), max(_both(s).values())
        line = f"{failed} tests of what the sampler drew fail, and none with both columns in base {' or '.join(bases)}"
        roots = " and ".join(f"{BASES[base]:.2f} in base {base}" for base in bases)
        return f"{line}; E[(π/μ)^s] = 1 at s = {s['identity/exponent']:.2f}, as at {roots}" if broken(s) else line
    column, base, _ = _guess(s)
    line = f"log π = {s['slope/base']:.3f}·log μ leaves {s['slope/base_left']:.1%} of the mismatch"
    return f"{line}: the {column}'s column is in base {base}, or was multiplied by nearly as much"


FAULT = Fault(
    "log_base",
    "a",
    70,
    _signature,
    _evidence,
    {
        "vLLM": "nothing: its log-probabilities are natural",
        "TRL": "nothing: natural",
        "yours": "the code that wrote the column: natural logarithms; temperature divides logits, no log-probabilities",
    },
    "critical",
)
