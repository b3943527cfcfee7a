"""What a fault is: a signature over statistics, the sentence that proves it, and where to look."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from algos.diagnostics.evidence import Statistics

Question = Literal["a", "b", "c"]
"""a: the logged numbers are not the sampler's. b: they are, but the difference is not rounding. c: it is rounding."""
QUESTIONS: dict[Question, str] = {
    "a": "the logged numbers are not the sampler's",
    "b": "the numbers are the sampler's, but the difference is not rounding",
    "c": "the difference is rounding",
}

SURE = 4.0
"""Normal deviates that a test asks for: 6e-5 by chance, and 3.9 was the most of 265 dumps without a fault."""
SIZE = 0.004
"""|E[ρ] − 1| that a broken identity asks for besides: less is within what few prompts leave."""
OFF = 0.05
"""Distance of the slope of logits from 1 that another temperature asks for; 0.043 was the most without one."""


@dataclass(frozen=True)
class Fault:
    """A fault by name.

    question: which of `QUESTIONS` it answers. order: faults of one question are tried from the least; a specific one comes first.
    signature: statistics -> strength ≥ 1 where the fault is there, None where it is not. The strength says how far beyond its
    thresholds. evidence: statistics -> a sentence with its number. check: program -> what to look at there, with the key's name.
    severity: critical (nothing learned from this batch is right), high (biased), note (no fault). sources: where the keys and the
    cases were read.
    """

    name: str
    question: Question
    order: int
    signature: Callable[[Statistics], float | None]
    evidence: Callable[[Statistics], str]
    check: dict[str, str]
    severity: Literal["critical", "high", "note"]
    sources: tuple[str, ...] = ()


def beyond(*parts: float) -> float | None:
    """The least of the parts, each a statistic over its threshold, if none is below 1 or NaN; else None."""
    return min(parts) if all(part >= 1 for part in parts) else None


def broken(s: Statistics) -> float | None:
    """How far E[ρ] is from 1, beyond `SURE` of its errors and `SIZE`; None if it is not."""
    return beyond(abs(s["identity/z"]) / SURE, abs(s["identity/mean"] - 1) / SIZE)


def excess(s: Statistics) -> float:
    """K3 over the most that rounding explains."""
    return s["tails/k3"] / s["size/k3_most"]


def ratio(a: float, b: float) -> float:
    """a/b; NaN where b is not above 0."""
    return a / b if b > 0 else math.nan


VLLM_MODE = "--logprobs-mode: raw_logprobs, the default, is before temperature, penalties, top-p and top-k"
VERL = "verl-project/verl 1dda039b9"
SKYRL = "NovaSky-AI/SkyRL a9564572e"
TRL = "huggingface/trl f2cd57710"
PRIME = "PrimeIntellect-ai/prime-rl 559b44772"
VLLM = "vllm 0.32"
"""Versions in which the keys were read."""
