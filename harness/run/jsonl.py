"""Reading and writing JSON lines of a run. The files only grow, so a kill during a write damages only the last line."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.files import open_own
from harness.room import bounded

LARGEST = 4 << 30
"""Maximum number of bytes read from a file. The files of a run are smaller."""


def loads(text: bytes) -> Any:
    """Parse JSON bytes. Raises ValueError on invalid JSON, on too deep nesting, and on a lone half of a surrogate pair."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if b"\\ud" in text or b"\\uD" in text:
        json.dumps(value, ensure_ascii=False).encode()  # what cannot be written to a page
    return value


def content(path: Path) -> bytes:
    """The bytes of a regular file of at most LARGEST bytes. Raises OSError on any other file; a pipe would block its reader."""
    with bounded(path), open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if found.st_size > LARGEST:
            raise OSError(errno.EFBIG, f"larger than {LARGEST >> 30} GiB")
        return file.read()


def append(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Append one JSON line per row, under a lock that holds across nodes. Raises OSError on failure, or if the file is a link."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    with open_own(path, "ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if file.seek(0, os.SEEK_END) and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
            text = "\n" + text  # the line before was cut short: it stays alone on its line
        file.write(text.encode())


def load(path: Path) -> Any:
    """The JSON value in a file. Raises OSError or ValueError if it cannot be read, UserError if it takes too much memory."""
    with bounded(path):
        return loads(content(path))


def read(path: Path) -> list[dict[str, Any] | None]:
    """The JSON object on each line of a file, None for an invalid line; [] without a file. Raises OSError or UserError."""
    if not path.exists():
        return []
    with bounded(path):
        return [_row(line) for line in content(path).splitlines()]


def _row(line: bytes) -> dict[str, Any] | None:
    with suppress(ValueError):
        row = loads(line)
        return row if isinstance(row, dict) else None
    return None
