"""Bound on the memory that reading a file takes: a small file that expands to much is refused before it fills the machine.

The bound is Linux's limit of private memory (RLIMIT_DATA). Other systems have none.
"""

from __future__ import annotations

import re
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from harness.errors import UserError


class TooLarge(UserError):
    """Raised when reading a file would take more memory than its share of the free memory."""


SHARE = 0.5
"""Share of the free memory that reading one file may take."""
_GIB = 1 << 30
GROUPS = Path("/sys/fs/cgroup")
"""Folder in which Linux shows control groups (version 2)."""
_turn, _within = threading.Lock(), 0


def room() -> int:
    """Bytes of memory that reading a file may take: SHARE of what the machine and this process's control groups have free."""
    return int(SHARE * min([psutil.virtual_memory().available, *_left_in_groups()]))


@contextmanager
def bounded(source: Path | str) -> Iterator[None]:
    """Context manager whose body may take `room()` more bytes, shared by all threads. Beyond them it raises TooLarge."""
    try:
        with _limited():
            yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
    else:
        return
    raise TooLarge(f"{source}: takes more than the {room() / _GIB:.1f} GiB that may be used here; give a smaller part of it")


def out_of_memory(error: Exception) -> bool:
    """Whether `error` says that memory of the CPU was refused. torch raises a plain RuntimeError for that."""
    return isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error)


@contextmanager
def _limited() -> Iterator[None]:
    global _within
    with _turn:
        _within += 1
        if _within == 1:
            _limit(room())
    try:
        yield
    finally:
        with _turn:
            _within -= 1
            if _within == 0:
                _limit(None)


def _limit(more: int | None) -> None:
    """Let this process take `more` bytes of private memory beyond its present use; None for no limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    with suppress(OSError, ValueError):  # no /proc, or a hard limit that is lower
        present = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (hard if more is None else present + more, hard))


def _left_in_groups() -> Iterator[int]:
    """Bytes left to each control group of this process that has a limit, as in a container or a Slurm job.

    File cache counts as left, because the kernel takes it back before it refuses memory. Shared memory is no such cache.
    """
    own = GROUPS / _group()
    for folder in [own, *own.parents]:
        with suppress(OSError, ValueError):  # no such file, or "max"
            most = int((folder / "memory.max").read_text())
            yield most - int((folder / "memory.current").read_text()) + _file_cache(folder)


def _file_cache(folder: Path) -> int:
    """Bytes of a control group that cache files; 0 where the kernel does not say."""
    with suppress(OSError):
        return sum(map(int, re.findall(r"^(?:in)?active_file (\d+)$", (folder / "memory.stat").read_text(), re.M)))
    return 0


def _group() -> str:
    with suppress(OSError):
        return Path("/proc/self/cgroup").read_text().partition("0::/")[2].partition("\n")[0]
    return ""
