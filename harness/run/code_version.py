"""The version of the running code, from the repository or from the file `snapshot.json` of a code snapshot. Torch-free."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parents[2]
"""Folder that contains the top-level packages of the project."""


def code_version() -> dict[str, Any]:
    """Version of the running code: commit, uncommitted diff, and the digest of the code snapshot (None outside of a snapshot)."""
    snapshot = HOME / "snapshot.json"
    if snapshot.exists():
        return json.loads(snapshot.read_text())
    return {"commit": _git("rev-parse", "HEAD"), "diff": _git("diff", "HEAD"), "snapshot": None}


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", "-C", str(HOME), *arguments], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None
