"""A fault of logged log-probabilities: how a batch's statistics reveal it, a sentence that says so, and where its cause is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from algos.diagnostics.evidence import Statistics
from algos.diagnostics.pairs import BASES

Question = Literal["a", "b", "c"]
"""Key of the statement that a fault supports. a: the logged numbers are not the sampler's. b: they are, but their difference from
the trainer's is not rounding. c: the difference is rounding."""
QUESTIONS: dict[Question, str] = {
    "a": "the logged numbers are not the sampler's",
    "b": "the numbers are the sampler's, but the difference is not rounding",
    "c": "the difference is rounding",
}

SURE = 4.0
"""Minimum |normal deviate| that shows a fault. Its probability by chance is 6e-5. 265 batches without a fault had up to 3.9."""
NATS = 0.01
"""Minimum |E[π/μ·(−log π − H(π))]| in nats per token that shows a fault, H being π's entropy: in BF16 it is off by as much."""
ABSURD = 100.0
"""Mean of π/μ that shows a broken identity without a normal deviate: if μ sampled, it is reached with probability 1 % at most."""
SIZE = 0.004
"""Minimum |E[ρ] − 1|, ρ = π/μ, for a broken identity E[ρ] = 1: with few prompts a smaller deviation occurs without a fault."""
LEANING = 2.5
"""Upper bound of |z| in a test that μ sampled the tokens, such as that of E[π/μ] = 1, below which μ may have sampled them."""
FILTERED = "responses that were left out before the dump, by their ratios or their rewards, move the mean ratio too"
"""What to check, whatever the program, where the mean ratio shows the fault."""
OFF = 0.05
"""Minimum |b − 1|, b the slope of logit π on logit μ, that shows another temperature; 0.043 was the maximum without a fault."""


@dataclass(frozen=True)
class Fault:
    """A named fault of logged log-probabilities.

    question: the key of `QUESTIONS` whose statement holds under the fault. order: faults of one question are tried in ascending
    order, so the specific ones have low numbers. signature: statistics -> strength ≥ 1 where the fault is present, else None. The
    strength says how far the statistics are beyond their thresholds. evidence: statistics -> a sentence with numbers. check: name
    of a program -> where to look in it, with the name of the config key.
    severity: critical (nothing learned from this batch is right), high (biased), note (no fault). sources: where the config keys
    and known cases were read.
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
    """The smallest of `parts`, each of which is a statistic divided by its threshold; None if any is below 1 or NaN."""
    return min(parts) if all(part >= 1 for part in parts) else None


def broken(s: Statistics) -> float | None:
    """How clearly E[π/μ] = 1 fails: the smaller of |z|/`SURE` and |E[π/μ] − 1|/`SIZE`, z the deviate from 1; None if below 1.

    A few huge ratios raise mean and error alike, so that |z| is small. A mean of at least `ABSURD` counts without z: π/μ ≥ 0 has
    the expectation 1 if μ sampled, so P(mean ≥ c) ≤ 1/c, whatever its tail (Markov's inequality).
    """
    return beyond(abs(s["identity/z"]) / SURE, abs(s["identity/mean"] - 1) / SIZE) or beyond(s["identity/mean"] / ABSURD)


def sampled(s: Statistics) -> bool:
    """Whether π and μ look like two policies of which μ sampled: E[π/μ] is near 1, and K1 = E[log μ − log π] clearly above 0.

    Both hold for a trainer that does not see the prompt, which otherwise looks like permuted responses or a wrong end token.
    Permuted responses have a K1 near 0, and a wrong end token moves E[π/μ] by more than `LEANING` normal deviates.
    """
    return max(abs(s["identity/z"]), abs(s["identity/drawn_z"])) < LEANING and s["identity/k1_z"] > SURE


def both_bases(s: Statistics) -> dict[str, int]:
    """Bases in which both columns may be: base -> number of tests, at least one, that fail if the columns are natural logarithms.

    The tests are of what μ sampled: E[π/μ] = 1 (`identity`), the agreement of samples (`collisions`) and their surprise. In a
    base that is returned none fails. Each test alone may owe that to chance: tokens cut away by top-p can have E[π/μ] < 1 and
    E[(π/μ)^2.3] = 1.
    """
    failed = (
        broken(s),
        beyond(abs(s["collisions/z"]) / SURE),
        beyond(abs(s["surprise/z"]) / SURE, abs(s["surprise/excess"]) / NATS),
    )
    number = sum(strength is not None for strength in failed)
    tests = ("identity", "collisions", "surprise")
    held = [base for base in BASES if not any(abs(s[f"{test}/base{base}_z"]) >= LEANING for test in tests)]
    return {base: number for base in held} if number else {}


def or_both_bases(s: Statistics) -> str:
    """End of a sentence of evidence that says in which other base both columns would explain the same tests; or nothing."""
    return f"; or both columns are in base {' or '.join(bases)}" if (bases := both_bases(s)) else ""


def excess(s: Statistics, most: str = "size/k3_most") -> float:
    """The compared mismatch K3 (nats per token, `diagnose.compared`) divided by the largest K3 that rounding explains.

    most: name of that largest K3, "size/k3_most_of_model" for the one of the same model.
    """
    return s["size/k3"] / s[most]


def ratio(a: float, b: float) -> float:
    """The quotient a/b; NaN where b is not above 0."""
    return a / b if b > 0 else math.nan


VLLM_MODE = "--logprobs-mode: raw_logprobs, the default, logs before temperature, penalties, top-p and top-k"
UNCUT = "top-p, top-k, min-p and penalties off: processed log-probabilities have them, the trainer's have not"
"""What must hold besides where `processed_logprobs` are logged."""
VERL = "verl-project/verl 1dda039b9"
SKYRL = "NovaSky-AI/SkyRL a9564572e"
TRL = "huggingface/trl f2cd57710"
PRIME = "PrimeIntellect-ai/prime-rl 559b44772"
VLLM = "vllm 0.32"
"""Version of vLLM whose config keys `Fault.check` names; VERL, SKYRL, TRL and PRIME are the versions of other frameworks."""
