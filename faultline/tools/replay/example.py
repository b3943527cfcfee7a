"""The dumps that ship with the package: SmolLM2-135M on sums, sampled by vLLM; `experiments/replay_example.py` makes them."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "example"
EXAMPLES = {"fp8": "SmolLM2-135M, FP8 rollout", "bf16": "SmolLM2-135M, BF16 rollout"}
"""Name → what a figure calls it."""


def example(name: str) -> Path:
    """The parquet file of an example."""
    return FOLDER / f"{name}.parquet"
