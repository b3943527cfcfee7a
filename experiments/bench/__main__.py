"""Print every ratio, and the machine that it was measured on."""

from __future__ import annotations

import os
import platform
import sys
import tempfile

import torch
from transformers.utils import logging

from experiments.bench import algorithms, run


def main(parts: list[str]) -> None:
    """All parts, or those named: algorithms, run."""
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    print(f"{_cpu()}, {os.cpu_count()} cores, 1 thread, torch {torch.__version__}, load {os.getloadavg()[0]:.1f}")
    if not parts or "algorithms" in parts:
        algorithms.main()
    if not parts or "run" in parts:
        with tempfile.TemporaryDirectory() as root:
            run.main(root)


def _cpu() -> str:
    with open("/proc/cpuinfo") as file:
        return next((line.split(":")[1].strip() for line in file if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main(sys.argv[1:])
