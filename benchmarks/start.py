"""Processor time of a start, of a run in a process of its own, and of one forked as in a packed sweep.

The lower limit is a process that only imports torch, transformers' Qwen3 and DeepSpeed, which training needs. Like a run, it
imports them without collecting garbage.
"""

import importlib
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from itertools import count
from statistics import median

from algos.registry import installed
from benchmarks.measure import in_turns, of_children, ratio
from harness.compose import compose
from harness.config import parse
from harness.startup import uncollected

ROUNDS = 3
FLOOR, OWN = "import torch, transformers and DeepSpeed", "a run of one step"
IMPORTS = "import gc; gc.disable(); import deepspeed; from transformers import Qwen3ForCausalLM"
TRAIN = (sys.executable, "-m", "experiments.train")


def main() -> None:
    seeds = count()
    with tempfile.TemporaryDirectory() as root:
        settings = ("steps=1", "tracking=disabled", f"run.root={root}")
        starts: dict[str, Callable[[], object]] = {
            "faultline --help": partial(_run, sys.executable, "-m", "faultline", "--help"),
            "train --help": partial(_run, *TRAIN, "--help"),
            FLOOR: partial(_run, sys.executable, "-c", IMPORTS),
            OWN: lambda: _run(*TRAIN, *settings, f"seed={next(seeds)}"),
        }
        with uncollected():  # as in sweeps/launchers/preloaded.py
            train = importlib.import_module("harness.run.loop").train
            importlib.import_module("pandas")
            installed()
        for name, chosen in (("the default config", ()), *((arm, (f"+experiment={arm}",)) for arm in ("demo/fp32", "demo/w4a4"))):
            starts[f"{OWN} of {name}, forked"] = partial(_forked, train, seeds, *chosen, *settings, "run.sweep=forked")
        seconds = in_turns(ROUNDS, starts, of_children)  # the first round makes the warm starts that all others find
    for name, taken in seconds.items():
        print(f"  {name}: {median(taken):.2f} ({min(taken):.2f} to {max(taken):.2f})")
    print(f"  {OWN} takes {ratio(seconds[OWN], seconds[FLOOR])} times the imports alone")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _forked(train: Callable[..., object], seeds: count, *overrides: str) -> None:
    """Train in a forked copy of this process."""
    config = parse(compose(*overrides, f"seed={next(seeds)}"))
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
