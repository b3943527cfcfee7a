"""Safe writing of files of runs and sweeps: atomic, never through a link, with a remedy for a full disk. Torch-free.

A folder from elsewhere may hold links in place of the files and folders that a command writes. Such a link could redirect
the write anywhere, so links are replaced or refused. A link above the folder that the user named is the user's own.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from harness.errors import Unavailable, UserError


class EventLog(Protocol):
    """Interface by which the trainer records events of a run. `harness.run.folder.RunFolder` implements it."""

    path: Path

    def log_event(self, kind: str, step: int, **more: Any) -> None:
        """Append an event of this `kind` at `step`, with the fields `more`, to the record of the run."""

    def log_questions(self, step: int, rewards: dict[str, list[float]]) -> None:
        """Record one evaluation. rewards: the mean reward of each prompt, in order, by "split/policy" such as held_out/own."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Context manager that turns an OSError of a write under `path`, such as a full disk, into Unavailable with a remedy."""
    try:
        yield
    except OSError as error:
        remedy = "free some space or set run.root to another disk, then start again: the run resumes from its last checkpoint"
        if isinstance(error, FileNotFoundError):  # the folder, since writing creates files
            remedy = "its folder was moved or removed; put it back, then start again: the run resumes from its last checkpoint"
        raise Unavailable(f"{path}: cannot write ({error.strerror}); {remedy}") from error


def to_disk(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk, so that it survives a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse_links(folder: Path, name: str) -> None:
    """Raise UserError if any folder between `folder` and its file `name`, such as "dumps/a.parquet", is a link."""
    for part in list(Path(name).parents)[:-1]:
        if (folder / part).is_symlink():
            raise UserError(
                f"{folder / part}: a link, and nothing is written through it; remove it, or put a folder in its place"
            )


@contextmanager
def replacing(folder: Path, name: str) -> Iterator[Path]:
    """Context manager that gives a temporary path to write to. It becomes the file `name` of `folder` when the body ends.

    A crash leaves the old file or the new. A link at the name is replaced, not followed. Folders inside `name` are created.
    Raises UserError if one of them is a link, and OSError if the write fails.
    """
    refuse_links(folder, name)
    target = folder / name
    for part in reversed(list(Path(name).parents)[:-1]):
        (folder / part).mkdir(exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)  # it may be a link
    try:
        yield temporary
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)  # else it would keep a full disk full
        raise


def write_file(folder: Path, name: str, content: str | bytes, *, durable: bool = False) -> None:
    """Write the file `name` of `folder` atomically, as UTF-8, replacing a link. durable: flush it to disk before returning."""
    with replacing(folder, name) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        if durable:
            to_disk(temporary)
    if durable:
        to_disk((folder / name).parent)


def output_folder(folder: Path) -> Path:
    """Create the folder for a command's results, and return it. Raises UserError if it is a link, which may lead anywhere."""
    if folder.is_symlink():
        raise UserError(f"{folder}: is a link; write into a folder of your own with --out, or give the folder itself")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def open_own(path: Path, mode: str) -> IO[Any]:
    """Open a file in `mode`, such as "a". Raises OSError if it is a link, or no regular file: opening a pipe could block."""
    return open(path, mode, opener=_regular)


def _regular(name: str, flags: int) -> int:
    descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "not a regular file", name)
