"""Sweeps, which are sets of many runs: grids and searches, on this machine or on Slurm."""

import time

STARTED = time.monotonic()
"""Monotonic time at which this process began, except for its first imports. Changes of the system clock do not affect it."""
