"""Benchmarks that report speeds as ratios. The programs compared take turns, so that a busy machine slows them alike.

Each file is a benchmark with a generator `cases` of comparisons, except `measure`. `python -m benchmarks NAME` runs one.
"""
