"""Processes that end with their parent."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def end_with_parent(by: signal.Signals) -> None:
    """Have the kernel send `by` to this process once its parent has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, by)
    if os.getppid() == 1:
        raise SystemExit(128 + by)
