"""Part of `make bench`: what a training step gains where equal rows are computed once, against computing every row.

Two trainers of the default run in fp32 take turns, step by step, from the same start. As the policy learns, more rows are equal.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from functools import partial

import torch

from experiments.bench.measure import milliseconds, ratio, timed
from harness.compose import compose
from harness.config import parse
from harness.run.folder import RunFolder
from harness.train.model import engine
from harness.train.model.equal_rows import distinct
from harness.train.trainer import Trainer
from harness.validate import check

SPANS = {"early": range(1, 12), "around step 30": range(28, 40), "from step 75": range(75, 99)}


def main() -> None:
    """Print the ratio of the step in each span, without the steps that evaluate."""
    torch.set_num_threads(1)
    ways = {"once": distinct, "every": lambda *_: (slice(None), slice(None))}
    seconds: dict[str, dict[int, float]] = {name: {} for name in ways}
    with tempfile.TemporaryDirectory() as root, ExitStack() as claims:
        trainers = {}
        for name in ways:
            config = parse(compose("rollout/precision=fp32", "tracking=disabled", f"run.root={root}", f"run.sweep={name}"))
            folder = RunFolder(config.path)
            claims.enter_context(folder.claim())
            trainers[name] = Trainer(check(config), folder)
        for step in range(1, max(SPANS["from step 75"]) + 1):
            for name, trainer in trainers.items():
                engine.distinct = ways[name]
                seconds[name][step] = timed(partial(trainer.step, step))
        engine.distinct = distinct
    rows = config.rollout.prompts * config.rollout.group_size
    print(f"\none RL step of the default run, fp32, {rows} responses: equal rows computed once, against every row")
    for span, steps in SPANS.items():
        once, every = ([seconds[name][step] for step in steps if step % config.evaluation.every] for name in ways)
        print(f"  {span}: {milliseconds(once)}, every row {milliseconds(every)}, {ratio(every, once)} times as fast")


if __name__ == "__main__":
    main()
