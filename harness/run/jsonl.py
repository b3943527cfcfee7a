"""JSON as a run writes it. Its files of JSON lines only grow: a kill amid a write costs the line being written, no other."""

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
"""Bytes of a file that are read; no run writes as many."""


def loads(text: bytes) -> Any:
    """The content of a JSON text. Raises ValueError on anything else, on endless nesting and on half a surrogate pair too."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if b"\\ud" in text or b"\\uD" in text:
        json.dumps(value, ensure_ascii=False).encode()  # what cannot be written to a page
    return value


def content(path: Path) -> bytes:
    """The bytes of a regular file of at most LARGEST. Raises OSError on anything else.

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
    """Append a line per row. The file is locked meanwhile, since processes on several nodes may append to it.

    Raises OSError as a write does, for example on a full disk, and where the file is a link.
    """
    text = "".join(json.dumps(row) + "\n" for row in rows)
    with open_own(path, "ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if file.seek(0, os.SEEK_END) and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
            text = "\n" + text  # the line before was cut short: it stays alone on its line
        file.write(text.encode())


def read(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """(line number from 1, object) of each line, None where the line is not a JSON object. Nothing if there is no file."""
    if not path.exists():
        return
    for number, line in enumerate(content(path).splitlines(), 1):
        try:
            row = loads(line)
        except ValueError:
            row = None
        yield number, row if isinstance(row, dict) else None
