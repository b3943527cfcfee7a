"""Processor time of starting a command, a run in a process of its own, and a run forked from a process with all imports done.

The lower limit is a process that does nothing but import torch, transformers' Qwen3 and DeepSpeed, as every run must.
"""

import importlib
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import partial
from itertools import count

from algos.registry import installed
from benchmarks.measure import Case, children
from harness.compose import compose
from harness.config import parse
from harness.startup import uncollected

IMPORTS = "import gc; gc.disable(); import deepspeed; from transformers import Qwen3ForCausalLM"
TRAIN = (sys.executable, "-m", "experiments.train")
RUNS = {"the default config": (), "edge/fp32": ("+experiment=edge/fp32",), "edge/w4a4": ("+experiment=edge/w4a4",)}


def cases() -> Iterator[Case]:
    """Generate one case, of all kinds of start. Its first round writes the warm-start policies that the other rounds reuse."""
    seeds = count()
    with uncollected():  # as in sweeps/launchers/preloaded.py
        train = importlib.import_module("harness.run.loop").train
        importlib.import_module("pandas")
        installed()
    with tempfile.TemporaryDirectory() as root:
        settings = ("steps=1", "tracking=disabled", f"run.root={root}")
        starts: dict[str, Callable[[], object]] = {
            "import torch, transformers and DeepSpeed": partial(_run, sys.executable, "-c", IMPORTS),
            "faultline --help": partial(_run, sys.executable, "-m", "faultline", "--help"),
            "train --help": partial(_run, *TRAIN, "--help"),
            "a run of one step": lambda: _run(*TRAIN, *settings, f"seed={next(seeds)}"),
        }
        for name, chosen in RUNS.items():
            starts[f"the same of {name}, forked"] = partial(_forked, train, seeds, *chosen, *settings, "run.sweep=forked")
        yield Case("", starts, clock=children)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _forked(train: Callable[..., object], seeds: count, *overrides: str) -> None:
    """Train a run, with the overrides of its config and the next seed, in a forked copy of this process."""
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
