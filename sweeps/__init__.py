"""Sweeps, which are sets of many training runs: grids and searches, on this machine or on Slurm."""

import time

STARTED = time.monotonic()
"""Monotonic time, in seconds, when this process first imported `sweeps`. A sweep cancelled before then may start again."""
