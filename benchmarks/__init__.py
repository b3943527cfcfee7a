"""Benchmarks that report speed as ratios. The sides of a ratio take turns, so that a busy machine slows them alike.

Each file is a benchmark with a generator `cases`, except the helper `measure`. `python -m benchmarks NAME` runs one.
"""
