"""Measurement for all benchmarks: times of calls that take turns, ratios of times with their spread, peak memory of a call."""

from __future__ import annotations

import ctypes
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from harness.train.trainer import Trainer


def own() -> float:
    """Processor seconds of this process so far. Other processes matter only through the processor caches that they occupy."""
    return time.process_time()


def clock() -> float:
    """Seconds by the clock, once the GPU has done all work so far: of a step on a GPU the processor's time tells little."""
    torch.cuda.synchronize()
    return time.perf_counter()


def children() -> float:
    """Processor seconds, so far, of the processes that this one has started and waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class Case(NamedTuple):
    """A comparison of several functions by the time of a call. runs: functions by name; the others are compared with the first.

    rounds: number of measured rounds, each calling every function. clock: function that reads the time in seconds. warm: whether
    an extra first round, in which kernels are chosen, is left out. tokens: number of tokens that a call generates; None if none.
    memory: whether the peak memory of a call is measured.
    """

    name: str
    runs: Mapping[str, Callable[[], object]]
    rounds: int = 3
    clock: Callable[[], float] = own
    warm: bool = True
    tokens: int | None = None
    memory: bool = False

    def report(self) -> str:
        """Measure the functions, and return a line for each: median and range of its time, and its ratio to the first one."""
        seconds: dict[str, list[float]] = {name: [] for name in self.runs}
        for _ in range(self.rounds + self.warm):
            for name, run in self.runs.items():
                began = self.clock()
                run()
                seconds[name].append(self.clock() - began)
        first, *_ = seconds = {name: taken[self.warm :] for name, taken in seconds.items()}
        lines = [f" {self.name}"] if self.name else []
        for name, taken in seconds.items():
            line = f"  {name}: {1e3 * median(taken):,.4g} ms ({1e3 * min(taken):,.4g} to {1e3 * max(taken):,.4g})"
            line += f", {self.tokens / median(taken):,.0f} tokens/s" if self.tokens else ""
            line += f", peak {peak(self.runs[name]) >> 20} MiB" if self.memory else ""
            line += f", {ratio(taken, seconds[first])} times {first}" if name != first else ""
            lines.append(line)
        return "\n".join(lines)


def ratio(ours: list[float], theirs: list[float]) -> str:
    """Median and quartiles of ours/theirs, two lists of seconds by round, as a string such as "2.41 (2.30 to 2.52)"."""
    each = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    return f"{median(each):.2f} ({each[len(each) // 4]:.2f} to {each[-1 - len(each) // 4]:.2f})"


def peak(run: Callable[[], object]) -> int:
    """Increase of memory during a call of `run`, from its start to its maximum, in bytes: of torch on a GPU, else resident."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before = _status("VmRSS")
    run()
    return _status("VmHWM") - before


def _status(key: str) -> int:
    row = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith(key))
    return int(row.split()[1]) * 1024


@contextmanager
def trainer(*overrides: str) -> Iterator[Trainer]:
    """Context manager of a run's trainer before its first step, without evaluation, in a temporary folder. overrides: Hydra's."""
    from harness.compose import compose
    from harness.config import parse
    from harness.run.folder import RunFolder
    from harness.train.trainer import Trainer
    from harness.validate import check

    with tempfile.TemporaryDirectory() as root:
        config = parse(compose(*overrides, "tracking=disabled", "evaluation.every=1000000", f"run.root={root}"))
        with RunFolder(config.path).claim() as folder:
            yield Trainer(check(config), folder)
