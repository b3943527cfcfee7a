"""Command line of `faultline memory`, which computes from a config the memory that a run will take."""

from __future__ import annotations

import argparse
from pathlib import Path

from faultline.cli.arguments import count, plug_ins_here

HELP = "the memory that a run will take, computed from its config"
DESCRIPTION = """\
The memory of each GPU at each moment of a step, of the host and of a checkpoint, in GB of 1e9 bytes. Nothing is loaded.
harness/memory.py has the equations and names what is not counted."""
EXAMPLES = """\
faultline memory --ranks 8 +experiment=gpu/qwen2.5_7b_bf16
faultline memory --ranks 32 +experiment=gpu/qwen2.5_32b_bf16 rollout.engine.tensor_parallel=8"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `faultline memory`."""
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="overrides, as for `faultline train`")
    parser.add_argument("--config-dir", type=Path, metavar="DIR", help="folder of your own configs, as for `faultline train`")
    parser.add_argument("--ranks", type=count(1), default=1, help="processes of the run, each with a GPU; by default 1")


def run(overrides: list[str], config_dir: Path | None, ranks: int) -> None:
    """Print the memory that a run with the config `overrides` takes on `ranks` GPUs. config_dir: folder of further configs."""
    from faultline.tools.memory import show_memory

    plug_ins_here()
    show_memory(overrides, ranks, config_dir)
