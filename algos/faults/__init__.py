"""Named faults of logged log-probabilities, and the diagnosis that tells them from rounding.

    diagnose(batch) -> Diagnosis(kind, fault, question, evidence, check, severity, strength, statistics, power)

A fault is a plug-in. Add one with `register`, or name it in the entry-point group `faultline.faults`.
"""

from __future__ import annotations

from algos.registry import Registry

__all__ = ["FAULTS"]

FAULTS = Registry(
    "faults",
    {
        **{name: f"algos.faults.{name}:FAULT" for name in ("eos", "fill", "mask", "shift", "permuted", "duplicates", "log_base")},
        **{name: f"algos.faults.{name}:FAULT" for name in ("swapped", "raw_logprobs", "truncated_sampling", "temperature")},
        **{name: f"algos.faults.{name}:FAULT" for name in ("stale", "prompt", "cache", "layer", "routing")},
    },
)
"""Registry of every known `base.Fault`, by name."""
