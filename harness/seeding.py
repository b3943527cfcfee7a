"""Seeds of a run. All randomness is a function of (seed, purpose, step), so that checkpoints need to store none."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import torch


def derive(seed: int, purpose: str, step: int = 0) -> int:
    """Derive a 63-bit seed for one purpose at one step, independent of all other purposes and steps."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{step}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def generator(seed: int, purpose: str, step: int = 0) -> torch.Generator:
    """A CPU random generator for one purpose at one step, independent of all other purposes and steps."""
    return torch.Generator().manual_seed(derive(seed, purpose, step))


def seed_globals(seed: int, step: int) -> None:
    """Seed the global generators of torch, numpy and random for one step, for plug-ins that draw from them."""
    value = derive(seed, "global", step)
    torch.manual_seed(value)
    np.random.seed(value % 2**32)
    random.seed(value)
