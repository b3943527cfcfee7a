"""Reading and writing JSON lines of a run. The files only grow, so a kill during a write damages only the last line."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from harness.files import open_own

LARGEST = 4 << 30
"""Maximum number of bytes read from a file; no run writes as many."""


def loads(text: bytes) -> Any:
    """Parse a JSON text. Raises ValueError on invalid JSON, on too deep nesting, and on half a surrogate pair."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if b"\\ud" in text or b"\\uD" in text:
        json.dumps(value, ensure_ascii=False).encode()  # what cannot be written to a page
    return value


def content(path: Path) -> bytes:
    """The bytes of a regular file of at most LARGEST bytes. Raises OSError on any other file.

    A pipe would block its reader for ever, and a device has no end.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if found.st_size > LARGEST:
            raise OSError(errno.EFBIG, f"larger than {LARGEST >> 30} GiB")
        return file.read()


def append(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Append one JSON line per row. The file is locked during the write, since processes on several nodes may append to it.

    Raises OSError if the write fails, for example on a full disk, and if the file is a link.
    """
    text = "".join(json.dumps(row) + "\n" for row in rows)
    with open_own(path, "ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if file.seek(0, os.SEEK_END) and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
            text = "\n" + text  # the line before was cut short: it stays alone on its line
        file.write(text.encode())


def read(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Pairs (line number from 1, JSON object) of a file. The object is None for an invalid line. Empty if the file is missing."""
    if not path.exists():
        return
    for number, line in enumerate(content(path).splitlines(), 1):
        try:
            row = loads(line)
        except ValueError:
            row = None
        yield number, row if isinstance(row, dict) else None
