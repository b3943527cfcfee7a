"""Benchmarks that report speed as ratios. The two sides of a ratio take turns, so that a busy machine slows both alike.

Each file is a benchmark, except the helpers `measure` and `steps`. `python -m benchmarks NAME` runs one from the root of a
checkout. Benchmarks are not installed with the package.
"""
