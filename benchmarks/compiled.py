"""One RL step of the default run, fp32, with actor.compile=true, against false.

Two trainers of the default run in fp32 take turns, step by step, from the same start. The first step compiles. It is measured
with an empty cache, and again in the same process with the cache that a sweep's runs share on a machine.
"""

import os
import tempfile
from contextlib import ExitStack
from functools import partial
from statistics import median

import torch

from benchmarks.measure import line, timed
from benchmarks.steps import in_span, steps_in_turns, trainer

SPANS = {"early": range(2, 12), "around step 30": range(28, 39)}


def main() -> None:
    with tempfile.TemporaryDirectory() as root, ExitStack() as runs:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{root}/cache"
        overrides = ("rollout/precision=fp32", "actor.compile=")
        plain, compiled = (runs.enter_context(trainer(root, overrides[0], overrides[1] + on)) for on in ("false", "true"))
        seconds = steps_in_turns({"plain": plain.step, "compiled": compiled.step}, max(SPANS["around step 30"]))
        torch.compiler.reset()
        again = timed(partial(compiled.step, 1 + max(SPANS["around step 30"])))  # a step that does not evaluate
    print(f"  the first step compiles: {seconds['compiled'][1]:.1f} s, from the cache {again:.1f} s, "
          f"uncompiled {seconds['plain'][1]:.2f} s")  # fmt: skip
    for name, span in SPANS.items():
        slow, fast = (in_span(seconds[way], span, plain.config.evaluation.every) for way in ("plain", "compiled"))
        saved = median(slow) - median(fast)
        pays = f"from the cache it pays after {again / saved:,.0f} steps" if saved > 0 else "it does not pay"
        print(f"{line(name, fast, 'uncompiled', slow)}; {pays}")
