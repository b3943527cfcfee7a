"""Named faults of logged log-probabilities, and the diagnosis that tells them from rounding.

    diagnose(batch) -> Diagnosis(kind, fault, question, evidence, check, severity, strength, statistics, power)

A fault is a plug-in. Add one with `FAULTS.register`, or as an entry point of the group `faultline.faults`.
"""

from __future__ import annotations

from algos.registry import Registry

__all__ = ["FAULTS"]

NAMES = (
    "eos", "fill", "mask", "shift", "permuted", "duplicates", "log_base", "swapped", "raw_logprobs", "sampler",
    "truncated_sampling", "stale", "temperature", "prompt", "cache", "layer", "routing",
)  # fmt: skip
FAULTS = Registry("faults", {name: f"algos.faults.{name}:FAULT" for name in NAMES})
"""Registry of every known `base.Fault`, by name."""
