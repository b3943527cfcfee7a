"""The mismatch of published runs as K3 in nats per token, for comparison with a dump."""

from __future__ import annotations

from typing import NamedTuple


class Scale(NamedTuple):
    """Range of K3 in a published run, in nats per token. what: the run. source: the publication."""

    low: float
    high: float
    what: str
    source: str


SCALES = (
    Scale(8e-6, 1.5e-5, "FP16 trainer and rollout, 1.5B", "arXiv 2510.26788"),
    Scale(6.4e-4, 1.5e-3, "BF16: 8B dense; 30B mixture of experts, which collapsed", "arXiv 2510.11370"),
    Scale(1.0e-3, 1.0e-2, "BF16, 14B on L20 GPUs, crashed", "Liu et al. 2025"),
    Scale(1.0e-2, 3.1e-2, "FP8, first 32 steps, in K1, which estimates KL too", "verl pull request 7519"),
    Scale(1.0e-2, 1.0, "BF16, 14B on A100, crashed", "Liu et al. 2025"),
)
"""Published scales of K3, ascending. Liu et al. 2025 is "When Speed Kills Stability". K1 and K3 both estimate KL(μ‖π)."""

NEGLIGIBLE = 1e-4
"""K3 in nats per token below which mismatch is negligible. Our choice, between FP16 and BF16; no source has it."""
LARGE = 1e-2
"""K3 in nats per token from which no weight is proposed that hardly varies. Our choice; no source calibrates one (docs/k3.md)."""
