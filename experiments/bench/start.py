"""Part of `make bench`: processor time of a start, of a run in a process of its own, and of one forked as in a packed sweep.

The floor is a process that imports what trains, torch, transformers' Qwen3 and DeepSpeed, without collecting garbage as a run's
imports do, and does nothing.
"""

from __future__ import annotations

import importlib
import os
import resource
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from statistics import median

from algos.registry import installed
from experiments.bench.measure import ratio
from harness.compose import compose
from harness.config import parse
from harness.startup import uncollected

ROUNDS = 3
FLOOR, OWN = "import torch, transformers and DeepSpeed", "a run of one step"
IMPORTS = "import gc; gc.disable(); import deepspeed; from transformers import Qwen3ForCausalLM"
TRAIN = (sys.executable, "-m", "experiments.train")


def main() -> None:
    """Print seconds of each start, and how many times the floor a run of one step takes."""
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that are measured
    with tempfile.TemporaryDirectory() as root:
        settings = ("steps=1", "tracking=disabled", f"run.root={root}")
        _run(*TRAIN, *settings, "seed=99")  # makes the warm start
        starts: dict[str, Callable[[int], object]] = {
            "faultline --help": lambda _: _run(sys.executable, "-m", "faultline", "--help"),
            "train --help": lambda _: _run(*TRAIN, "--help"),
            FLOOR: lambda _: _run(sys.executable, "-c", IMPORTS),
            OWN: lambda seed: _run(*TRAIN, *settings, f"seed={seed}"),
        }
        with uncollected():  # as in sweeps/launchers/preloaded.py
            train = importlib.import_module("harness.run.loop").train
            importlib.import_module("pandas")
            installed()
        for arm in ("run", "demo/fp32", "demo/w4a4"):
            chosen = () if arm == "run" else (f"+experiment={arm}",)
            name = f"{OWN} of {'the default config' if arm == 'run' else arm}, forked"
            starts[name] = partial(_forked, train, (*chosen, *settings, f"run.sweep=forked-{arm.replace('/', '-')}"))
        seconds: dict[str, list[float]] = {name: [] for name in starts}
        for seed in range(-1, ROUNDS):  # the first round makes what all others find
            for name, start in starts.items():
                before = _spent()
                start(seed + 1)
                seconds[name].append(_spent() - before)
    print(f"\nseconds of processor time of a process, median and range of {ROUNDS}")
    for name, taken in seconds.items():
        taken = taken[1:]
        print(f"  {name}: {median(taken):.2f} ({min(taken):.2f} to {max(taken):.2f})")
    print(f"  {OWN} takes {ratio(seconds[OWN][1:], seconds[FLOOR][1:])} times the imports alone")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _forked(train: Callable[..., object], overrides: tuple[str, ...], seed: int) -> None:
    """Train in a copy of this process."""
    config = parse(compose(*overrides, f"seed={seed}"))
    child = os.fork()
    if not child:
        try:
            with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
                train(config)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def _spent() -> float:
    """Processor seconds of the processes that this one has waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
