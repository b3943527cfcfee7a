"""Settings with which a child process ends together with its parent, and without a traceback."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import traceback
from types import TracebackType

PR_SET_PDEATHSIG = 1


def end_with_parent(by: signal.Signals) -> None:
    """Make Linux send this process the signal `by` when its parent ends. Raises SystemExit if the parent has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, by)
    if os.getppid() == 1:
        raise SystemExit(128 + by)


def end_quietly_without_data() -> None:
    """End a forked process without a traceback if its launcher dies before sending the run to execute."""

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(trace)]
        within = bool(frames) and frames[-1].startswith("multiprocessing.")
        if not (within and issubclass(kind, EOFError | pickle.UnpicklingError)):
            sys.__excepthook__(kind, error, trace)

    sys.excepthook = report
