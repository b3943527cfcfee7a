"""The example dumps of the package: SmolLM2-135M on sums, sampled by vLLM; `experiments/replay_example.py` makes them."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "example"
EXAMPLES = {name: f"SmolLM2-135M from a 4-bit file, {name.upper()} rollout" for name in ("fp8", "bf16")}
"""Name of an example dump -> its label in figures."""


def example(name: str) -> Path:
    """Path of the parquet file of an example dump."""
    return FOLDER / f"{name}.parquet"
