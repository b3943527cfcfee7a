"""The example dumps of the package: SmolLM2-135M, sampled by vLLM.

`experiments/replay_example.py` makes the sound ones, and `tests/oracles/ship_example.py` that with a fault, of SkyRL's trainer.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "example"
EXAMPLES = {
    "fp8": "SmolLM2-135M from a 4-bit file, FP8 rollout",
    "bf16": "SmolLM2-135M from a 4-bit file, BF16 rollout",
    "raw": "SmolLM2-135M in SkyRL 0.3.0, BF16 at T 0.7, raw logprobs",
}
"""Name of an example dump -> its label in figures."""
SOUND = ("fp8", "bf16")
"""Example dumps without a fault, beside which other dumps are drawn. `raw` has one: vLLM logged before the temperature."""
PRECISIONS = {"fp8": "fp8_channel", "bf16": "bf16", "raw": "bf16"}
"""Name of an example dump -> precision of its rollouts."""


def example(name: str) -> Path:
    """Path of the parquet file of an example dump."""
    return FOLDER / f"{name}.parquet"
