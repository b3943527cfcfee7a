"""JSON as a run writes it. Its files of JSON lines only grow: a kill amid a write costs the line being written, no other."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from harness.files import open_own


def loads(text: bytes) -> Any:
    """The content of a JSON text. Raises ValueError on anything else, on endless nesting and on half a surrogate pair too."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if b"\\ud" in text or b"\\uD" in text:
        json.dumps(value, ensure_ascii=False).encode()  # what cannot be written to a page
    return value


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
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            row = loads(line)
        except ValueError:
            row = None
        yield number, row if isinstance(row, dict) else None
