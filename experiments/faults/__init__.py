"""Faults injected on purpose, and what `algos.faults.diagnose` calls each: `python -m experiments.faults`."""
