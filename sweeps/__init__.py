"""Many runs: grids and searches, on this machine or on Slurm."""

import time

STARTED = time.monotonic()
"""When this process began, but for its first imports. No change of the clock moves it."""
