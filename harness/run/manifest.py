"""Whether a checkpoint is whole, by the SHA-256 of its files. Torch-free, so that a damaged one is reported at once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path


def damage_of(folder: Path) -> str | None:
    """What is wrong with the checkpoint in `folder`; None if nothing is."""
    try:
        expected = json.loads((folder / "manifest.json").read_text())
    except (OSError, ValueError) as error:
        return f"manifest.json unreadable: {error}"
    if not isinstance(expected, dict) or "state.json" not in expected:
        return "manifest.json does not list state.json"
    actual = digests(folder)
    for name, digest in expected.items():
        if actual.get(name) != digest:
            return f"{name} {'is missing' if name not in actual else 'differs from its checksum'}"
    return None


def digests(folder: Path) -> dict[str, str]:
    """File name -> SHA-256, without the manifest itself."""
    return dict(sorted(_walk(folder)))


def _walk(folder: Path) -> Iterator[tuple[str, str]]:
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "manifest.json":
            with open(path, "rb") as file:
                yield str(path.relative_to(folder)), hashlib.file_digest(file, "sha256").hexdigest()
