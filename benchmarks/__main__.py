"""Command line `python -m benchmarks NAME`, which runs one benchmark from the root of a checkout. `make bench` runs all."""

import importlib
import os
import platform
import sys
from importlib.util import find_spec
from pathlib import Path

ORACLES = Path(".venv/oracles")
"""Folder into which `make bench` installs TRL and verl."""
SMOLLM2 = Path("models/smollm2")
"""Folder of the SmolLM2 model that `make llm` creates."""


def main(name: str, *arguments: str) -> None:
    """Print the subject of a benchmark and the machine, then run it on one thread, or say which package or model is missing."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path.append(str(ORACLES))
    part = importlib.import_module(f"benchmarks.{name}")
    print(f"\n{part.__doc__.splitlines()[0]}\n({_cpu()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f})", flush=True)
    here = {"trl": find_spec("trl"), "verl": find_spec("verl"), "vllm": find_spec("vllm"), "smollm2": SMOLLM2.exists()}
    if missing := [need for need in getattr(part, "NEEDS", ()) if not here[need]]:
        print(f"  not measured without {' and '.join(missing)}: see `make bench`, `make llm`, `make vllm`")
        return
    import torch
    from transformers.utils import logging

    torch.set_num_threads(1)
    logging.set_verbosity_error()
    for case in part.cases(*arguments):
        print(case.report(), flush=True)


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main(*sys.argv[1:])
