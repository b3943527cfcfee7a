"""The example dumps of the package: SmolLM2-135M, sampled by vLLM.

`experiments/replay_example.py` makes those of vLLM alone, and `tests/oracles/ship_example.py` those of SkyRL's trainer.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "example"
EXAMPLES = {
    "fp8": "SmolLM2-135M from a 4-bit file, FP8 rollout",
    "bf16": "SmolLM2-135M from a 4-bit file, BF16 rollout",
    "raw": "SmolLM2-135M in SkyRL 0.3.0, BF16, T 0.7, raw logprobs",
    "processed": "SmolLM2-135M in SkyRL 0.3.0, BF16, T 0.7, processed logprobs",
}
"""Name of an example dump -> its label in figures."""
SKYRL = ("raw", "processed")
"""Example dumps of SkyRL's trainer. `raw` has a fault, vLLM logged before temperature, which `processed` is without."""
SOUND = ("fp8", "bf16")
"""Example dumps beside which other dumps are drawn: of one model and the same prompts, without a fault."""
PRECISIONS = {"fp8": "fp8_channel", "bf16": "bf16", "raw": "bf16", "processed": "bf16"}
"""Name of an example dump -> precision of its rollouts."""


def example(name: str) -> Path:
    """Path of the parquet file of an example dump."""
    return FOLDER / f"{name}.parquet"
