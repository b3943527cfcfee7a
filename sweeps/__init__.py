"""Many runs: grids and searches, on this machine or on Slurm."""

import time

STARTED = time.time()
"""When this process began, but for its first imports."""
