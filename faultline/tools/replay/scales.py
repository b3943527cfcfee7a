"""The mismatch of published runs as K3 in nats per token, for comparison with a dump."""

from __future__ import annotations

from typing import NamedTuple


class Scale(NamedTuple):
    """Range of K3 in a published run, or one number twice, in nats per token. what: the run. source: the publication."""

    low: float
    high: float
    what: str
    source: str

    def __str__(self) -> str:
        """The range, or the one number."""
        return f"{self.low:.1e}" if self.low == self.high else f"{self.low:.1e} to {self.high:.1e}"


SCALES = (
    Scale(8e-6, 1.5e-5, "FP16 trainer and rollout, 1.5B", "arXiv 2510.26788"),
    Scale(5.0e-4, 1.0e-3, "BF16, 14B on H20 GPUs, one recovered", "Liu et al. 2025"),
    Scale(6.4e-4, 6.4e-4, "BF16, 8B dense", "arXiv 2510.11370"),
    Scale(7.5e-4, 7.5e-4, "BF16, 30B mixture with routing replay, no collapse", "arXiv 2510.11370"),
    Scale(1.0e-3, 1.0e-3, "BF16, 1.5B with a sequence mask, stable", "arXiv 2510.26788"),
    Scale(1.0e-3, 1.0e-2, "BF16, 14B on L20 GPUs, crashed", "Liu et al. 2025"),
    Scale(1.5e-3, 1.5e-3, "BF16, 30B mixture, collapsed", "arXiv 2510.11370"),
    Scale(1.0e-2, 3.1e-2, "FP8, first 32 steps, in K1, which estimates KL too", "verl pull request 7519"),
    Scale(1.0e-2, 1.0, "BF16, 14B on A100, crashed", "Liu et al. 2025"),
)
"""Published scales of K3, ascending. Liu et al. 2025 is "When Speed Kills Stability". K1 and K3 both estimate KL(μ‖π)."""

NEGLIGIBLE = 1e-4
"""K3 in nats per token below which mismatch is negligible. Our choice, between FP16 and BF16; no source has it."""
LARGE = 1e-2
"""K3 in nats per token from which no weight is proposed that hardly varies. Our choice; no source calibrates one (docs/k3.md)."""
