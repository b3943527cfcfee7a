"""`faultline memory`: the memory that a run will take on each GPU and on the host, and its disk space."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.compose import compose
from harness.config import parse
from harness.memory import MOMENTS, memory, shape_of, sizes_of


def show_memory(overrides: Sequence[str], ranks: int, config_dir: Path | None = None) -> None:
    """Print the memory that a run on `ranks` GPUs takes in each phase, and its disk space.

    config_dir: folder with config groups of the user, such as imported experiments. Raises UserError if the memory is unknown.
    """
    config = parse(compose(*overrides, config_dir=config_dir))
    computed, sizes = memory(config, ranks), sizes_of(shape_of(config))
    rows = [(part.name, part.equation, [part.at.get(moment, 0) for moment in MOMENTS]) for part in computed.gpu]
    rows.append(("sum", "", [computed.total(moment) for moment in MOMENTS]))
    print(f"GB of each GPU; Ψ = {sizes.numbers:,}, N = {ranks}, V·h = {sizes.head:,}")
    print(f"{'':64}" + "".join(f"{moment:>9}" for moment in MOMENTS))
    for name, equation, sums in rows:
        print((f"{name:<42}{equation:<22}" + "".join(f"{_gb(size):>9}" for size in sums)).rstrip())
    print("\nGB of host memory for each rank")
    for name, size in computed.host.items():
        print(f"{name:<62}{_gb(size):>9}")
    print(f"\n{'GB on disk for a checkpoint':<62}{_gb(computed.disk):>9}")


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f}" if size else ""
