"""Part of `make bench`: what actor.compile=true costs at the start of a run, and gains in each later step.

Two trainers of the default run in fp32 take turns, step by step, from the same start. The first step compiles, once with an
empty cache, and once more from the cache that the runs of a sweep share on a machine, in the same process.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from functools import partial
from statistics import median

import torch

from experiments.bench.measure import milliseconds, ratio, timed
from harness.compose import compose
from harness.config import parse
from harness.run.folder import RunFolder
from harness.train.trainer import Trainer
from harness.validate import check

SPANS = {"early": range(2, 12), "around step 30": range(28, 39)}


def main() -> None:
    """Print what compiling takes, and the ratio of the step in each span, without the steps that evaluate."""
    torch.set_num_threads(1)
    seconds: dict[bool, dict[int, float]] = {False: {}, True: {}}
    with tempfile.TemporaryDirectory() as root, ExitStack() as claims:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{root}/cache"
        trainers = {}
        for compiled in seconds:
            changed = [f"actor.compile={str(compiled).lower()}", f"run.root={root}", "tracking=disabled"]
            config = parse(compose("rollout/precision=fp32", *changed))
            folder = RunFolder(config.path)
            claims.enter_context(folder.claim())
            trainers[compiled] = Trainer(check(config), folder)
        for step in range(1, max(SPANS["around step 30"]) + 1):
            for compiled, trainer in trainers.items():
                seconds[compiled][step] = timed(partial(trainer.step, step))
        torch.compiler.reset()
        again = timed(partial(trainers[True].step, step + 1))  # step 39: one that does not evaluate
    print("\none RL step of the default run, fp32: actor.compile=true against false")
    first, uncompiled = seconds[True][1], seconds[False][1]
    print(f"  the first step compiles: {first:.1f} s, from the cache {again:.1f} s, uncompiled {uncompiled:.2f} s")
    for span, steps in SPANS.items():
        plain, fast = ([seconds[way][step] for step in steps if step % config.evaluation.every] for way in (False, True))
        saved = median(plain) - median(fast)
        pays = f"from the cache it pays after {again / saved:,.0f} steps" if saved > 0 else "it does not pay"
        print(f"  {span}: {milliseconds(fast)}, uncompiled {milliseconds(plain)}, {ratio(plain, fast)} times as fast; {pays}")


if __name__ == "__main__":
    main()
