"""Part of `make bench`: processor time of a start, of a run in a process of its own, and of one forked as in a packed sweep.

The floor is a process that imports what trains, torch, transformers' Qwen3 and DeepSpeed, and does nothing.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from statistics import median

from experiments.bench.measure import ratio
from harness.compose import compose
from harness.config import parse
from harness.startup import uncollected

ROUNDS = 3
FLOOR = "import torch, transformers and DeepSpeed"
TRAIN = (sys.executable, "-m", "experiments.train")


def main() -> None:
    """Print seconds of each start, and what the floor takes of a run of one step."""
    with tempfile.TemporaryDirectory() as root:
        settings = ("steps=1", "tracking=disabled", f"run.root={root}")
        _run(*TRAIN, *settings, "seed=99")  # makes the warm start
        starts: dict[str, Callable[[int], object]] = {
            "faultline --help": lambda _: _run(sys.executable, "-m", "faultline", "--help"),
            "train --help": lambda _: _run(*TRAIN, "--help"),
            FLOOR: lambda _: _run(sys.executable, "-c", "import deepspeed; from transformers import Qwen3ForCausalLM"),
            "a run of one step": lambda seed: _run(*TRAIN, *settings, f"seed={seed}"),
        }
        with uncollected():
            from harness.run import loop
        starts["a run of one step, forked"] = lambda seed: _forked(
            partial(loop.train, parse(compose(*settings, f"seed={seed}", "run.sweep=forked")))
        )
        seconds: dict[str, list[float]] = {name: [] for name in starts}
        for seed in range(ROUNDS):
            for name, start in starts.items():
                before = _spent()
                start(seed)
                seconds[name].append(_spent() - before)
    print(f"\nseconds of processor time of a process, median and range of {ROUNDS}")
    for name, taken in seconds.items():
        print(f"  {name}: {median(taken):.2f} ({min(taken):.2f} to {max(taken):.2f})")
    print(f"  a run of one step takes {ratio(seconds['a run of one step'], seconds[FLOOR])} times the imports alone")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _forked(work: Callable[[], object]) -> None:
    """Do the work in a copy of this process."""
    child = os.fork()
    if not child:
        try:
            with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
                work()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def _spent() -> float:
    """Processor seconds of the processes that this one has waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
