"""Files of the tools: read up to a bound, written whole or not at all, and never through a link."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from harness.errors import UserError


def read_text(path: Path, largest: int) -> str:
    """The text of a file of at most `largest` bytes. Raises UserError on anything else."""
    try:
        with open(path, "rb") as file:
            content = file.read(largest + 1)
        text = content.decode()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give a file that can be") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: cannot be read (not a text file); give one in UTF-8") from None
    if len(content) > largest:
        raise UserError(f"{path}: larger than {largest} bytes; that is no recipe")
    return text


def output_folder(folder: Path) -> Path:
    """Make `folder`. Raises UserError where it is a link, which in a stranger's folder may lead anywhere."""
    if folder.is_symlink():
        raise UserError(f"{folder}: is a link; write into a folder of your own with --out, or give the folder itself")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write(path: Path, content: str | bytes) -> None:
    """Replace `path`, a link too, by a file of this content. What the link leads to stays as it is."""
    data = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)  # else it would keep a full disk full
        raise


def _umask() -> int:
    """The process's mask, which can be read only by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
