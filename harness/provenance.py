"""Where a result comes from: code, versions, machine. No environment variables, which may hold secrets."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("torch", "transformers", "deepspeed", "hydra-core", "wandb", "numpy")


def provenance() -> dict[str, Any]:
    """Versions, commit, dirty diff, host and device of this process."""
    return {
        "python": sys.version.split()[0],
        "packages": {name: version(name) for name in PACKAGES},
        "commit": _git("rev-parse", "HEAD"),
        "diff": _git("diff", "HEAD"),
        "host": platform.node(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
    }


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", "-C", str(Path(__file__).parent), *arguments], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None
