"""Benchmarks that report speeds as ratios. The programs compared take turns, so that a busy machine slows them alike.

Each file but `measure` is a benchmark, whose generator `cases` yields its comparisons. `python -m benchmarks NAME` runs one.
"""
