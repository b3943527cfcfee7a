"""Which code runs. Torch-free, so that a launcher can ask.

A snapshot of the code, which a sweep on a cluster runs from, has no repository around it: it carries the answer in
`snapshot.json` beside the packages.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parents[2]
"""Where the root packages lie."""


def code_version() -> dict[str, Any]:
    """commit, uncommitted diff, and the digest of the snapshot that the code is run from, null outside one."""
    snapshot = HOME / "snapshot.json"
    if snapshot.exists():
        return json.loads(snapshot.read_text())
    return {"commit": _git("rev-parse", "HEAD"), "diff": _git("diff", "HEAD"), "snapshot": None}


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", "-C", str(HOME), *arguments], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None
