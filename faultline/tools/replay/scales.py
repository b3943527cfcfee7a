"""The mismatch of published runs: K3, nats per token."""

from __future__ import annotations

from typing import NamedTuple


class Scale(NamedTuple):
    """K3 from `low` to `high` nats per token, of what, and who reports it."""

    low: float
    high: float
    what: str
    source: str


SCALES = (
    Scale(8e-6, 1.5e-5, "FP16 trainer and rollout, 1.5B", "arXiv 2510.26788"),
    Scale(6.4e-4, 1.5e-3, "BF16, 8B dense and 30B mixture", "arXiv 2510.11370"),
    Scale(1.0e-2, 3.1e-2, "FP8, its first 32 steps", "verl pull request 7519, K1"),
    Scale(1e-2, 1.0, "BF16 on A100, 14B, runs that crashed", "Liu et al. 2025"),
)
"""Ascending. Liu et al. 2025 is "When Speed Kills Stability". K1 and K3 estimate the same divergence, KL(μ‖π)."""

NEGLIGIBLE = 1e-4
"""Our choice between FP16 and BF16; no source has it. At the K3 of FP16 all methods of arXiv 2510.26788 train alike."""
LARGE = 1e-2
"""From here on runs crashed (Liu et al. 2025), or lost accuracy without a correction (FP8, arXiv 2601.18150).

That they did is published. That it makes a threshold is our choice."""
