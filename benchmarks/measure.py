"""Helpers of all benchmarks: processor time taken in turns, ratios with their spread, and the peak memory of a call."""

from __future__ import annotations

import ctypes
import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median


def timed(run: Callable[[], object]) -> float:
    """Processor seconds of one call. Other processes on the machine do not count, except for the caches that they occupy."""
    began = time.process_time()
    run()
    return time.process_time() - began


def in_turns(
    rounds: int, runs: Mapping[str, Callable[[], object]], measure: Callable[[Callable[[], object]], float] = timed
) -> dict[str, list[float]]:
    """Processor seconds of each run in each round. An extra first round, in which kernels are chosen, is left out."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            seconds[name].append(measure(run))
    return {name: taken[1:] for name, taken in seconds.items()}


def of_children(run: Callable[[], object]) -> float:
    """Processor seconds of the processes that a call starts and waits for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def ratio(theirs: list[float], ours: list[float]) -> str:
    """Median and quartiles of theirs/ours round by round, as text such as "2.41 (2.30 to 2.52)"."""
    each = sorted(a / b for a, b in zip(theirs, ours, strict=True))
    return f"{median(each):.2f} ({each[len(each) // 4]:.2f} to {each[-1 - len(each) // 4]:.2f})"


def milliseconds(seconds: list[float]) -> str:
    """The median in milliseconds, as text such as "105 ms"."""
    return f"{1e3 * median(seconds):.3g} ms"


def line(name: str, ours: list[float], whose: str, theirs: list[float]) -> str:
    """A line of results, such as "early: 78 ms, TRL 190 ms, 2.54 (2.38 to 2.58) times as fast"."""
    return f"  {name}: {milliseconds(ours)}, {whose} {milliseconds(theirs)}, {ratio(theirs, ours)} times as fast"


def peak(run: Callable[[], object]) -> int:
    """Increase of the highest resident memory during a call, over the memory before it, in bytes."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before = _status("VmRSS")
    run()
    return _status("VmHWM") - before


def _status(key: str) -> int:
    row = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith(key))
    return int(row.split()[1]) * 1024
