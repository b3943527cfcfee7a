"""Detection of damaged checkpoints by the SHA-256 of their files, and reading of their state. Torch-free."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.config import explain
from harness.config.base import Count
from harness.run.jsonl import loads

Whole = Annotated[int, Field(ge=0)]


class State(BaseModel):
    """Content of a checkpoint's state.json: next step, optimizer steps done, ranks, events and state of collapse detectors."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    step: Whole
    updates: Whole
    ranks: Count
    events: dict[str, dict[str, Any]]
    detectors: dict[str, dict[str, Any]]


def read_state(folder: Path) -> State:
    """Read the state of the checkpoint in `folder`, which must be undamaged (`damage_of`)."""
    return State.model_validate_json((folder / "state.json").read_bytes())


def damage_of(folder: Path) -> str | None:
    """Describe the damage of the checkpoint in `folder`; None if it is intact."""
    try:
        expected = loads((folder / "manifest.json").read_bytes())
    except (OSError, ValueError) as error:
        return f"manifest.json unreadable: {error}"
    if not isinstance(expected, dict) or "state.json" not in expected:
        return "manifest.json does not list state.json"
    actual = digests(folder)
    for name, digest in expected.items():
        if actual.get(name) != digest:
            return f"{name} {'is missing' if name not in actual else 'differs from its checksum'}"
    try:
        read_state(folder)
    except ValidationError as error:
        return f"state.json: {explain(dict(error.errors()[0]))}"
    return None


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of each file of the checkpoint in `folder` except manifest.json, by the file's path within the folder."""
    return dict(sorted(_walk(folder)))


def _walk(folder: Path) -> Iterator[tuple[str, str]]:
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "manifest.json":
            with open(path, "rb") as file:
                yield str(path.relative_to(folder)), hashlib.file_digest(file, "sha256").hexdigest()
