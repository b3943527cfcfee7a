"""A test of `algos.faults.diagnose` on faults injected on purpose: `python -m experiments.faults`."""
