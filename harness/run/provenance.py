"""Record of the code, versions and machine that produced a result. Environment variables may hold secrets and are omitted."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from harness.rollouts.vllm_support import installed
from harness.run.code_version import code_version

PACKAGES = ("torch", "transformers", "deepspeed", "hydra-core", "wandb", "numpy")


def provenance() -> dict[str, Any]:
    """Library versions, commit, uncommitted diff, host and device of this process."""
    return {
        "python": sys.version.split()[0],
        "packages": {name: _version(name) for name in PACKAGES} | {"vllm": installed()},
        **code_version(),
        "host": platform.node(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # wandb is an extra of its own
        return None
