"""Test of the diagnosis of dumps, `algos.faults.diagnose`, on faults injected on purpose: `python -m experiments.faults`."""
