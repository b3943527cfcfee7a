"""Part of `make bench`: an RL step of the demo's mixture of experts against the same step of its dense twin."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count

import torch

from experiments.bench.measure import in_turns, milliseconds, ratio
from harness.compose import compose
from harness.config import parse
from harness.run.folder import RunFolder
from harness.train.trainer import Trainer
from harness.validate import check

ROUNDS = 20
"""Steps of each model, all before the first evaluation."""


def main() -> None:
    """Both train from their warm starts, so that each has the equal responses of a run, which are computed once."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        for arm in ("fp32", "w4a4"):
            with ExitStack() as claims:
                moe, small = (_stepper(claims, root, arm, model) for model in ("moe", "small"))
                seconds = in_turns(ROUNDS, {"moe": moe, "small": small})
            against = f"{ratio(seconds['moe'], seconds['small'])} of the dense twin's {milliseconds(seconds['small'])}"
            print(f"one RL step of the demo, {arm} rollouts: mixture {milliseconds(seconds['moe'])}, {against}", flush=True)


def _stepper(claims: ExitStack, root: str, arm: str, model: str) -> Callable[[], object]:
    config = parse(compose(f"+experiment=demo/{arm}", f"model={model}", "tracking=disabled", f"run.root={root}"))
    folder = RunFolder(config.path)
    claims.enter_context(folder.claim())
    trainer, steps = Trainer(check(config), folder), count(1)
    return lambda: trainer.step(next(steps))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
