"""One RL step of the default run, fp32, with equal rows computed once, against every row.

Two trainers of the default run in fp32 take turns, step by step, from the same start. As the policy learns, more rows become
equal.
"""

import tempfile
from contextlib import ExitStack

from benchmarks.measure import line
from benchmarks.steps import in_span, steps_in_turns, trainer
from harness.train.model import engine
from harness.train.model.equal_rows import distinct

SPANS = {"early": range(1, 12), "around step 30": range(28, 40), "from step 75": range(75, 99)}
WAYS = {"once": distinct, "every": lambda *_: (slice(None), slice(None))}


def main() -> None:
    with tempfile.TemporaryDirectory() as root, ExitStack() as runs:
        trainers = {way: runs.enter_context(trainer(root, "rollout/precision=fp32", f"run.sweep={way}")) for way in WAYS}

        def step(way: str, number: int) -> None:
            engine.distinct = WAYS[way]
            trainers[way].step(number)

        seconds = steps_in_turns({way: lambda number, way=way: step(way, number) for way in WAYS}, max(SPANS["from step 75"]))
    every = trainers["once"].config.evaluation.every
    for name, span in SPANS.items():
        once, all_rows = (in_span(seconds[way], span, every) for way in WAYS)
        print(line(name, once, "every row", all_rows))
