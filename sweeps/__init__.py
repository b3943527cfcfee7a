"""Sweeps, which are sets of many training runs: grids and searches, on this machine or on Slurm."""

import time

STARTED = time.monotonic()
"""Time at which this process first imported `sweeps`, in seconds of the monotonic clock, which the system clock cannot change."""
