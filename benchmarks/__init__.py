"""Speed as ratios, each pair taking turns so that a busy machine slows both alike.

A file is a benchmark, and `python -m benchmarks NAME` runs it from the root of a checkout. None is installed with the package.
Two files help them: `measure` and `steps`.
"""
