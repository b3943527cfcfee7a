"""Test of the diagnosis of dumps (batches on disk) on faults injected on purpose: `python -m experiments.faults`."""
