"""One RL step of the demo's mixture of experts, against its dense twin.

Both train from their warm starts, so that each has as many equal responses as in a run. Equal responses are computed once.
"""

import tempfile
from contextlib import ExitStack

from benchmarks.measure import milliseconds, ratio
from benchmarks.steps import in_span, steps_in_turns, trainer

STEPS = range(2, 22)
"""Steps that are compared; all come before the first evaluation."""


def main() -> None:
    with tempfile.TemporaryDirectory() as root:
        for arm in ("fp32", "w4a4"):
            with ExitStack() as runs:
                moe, small = (
                    runs.enter_context(trainer(root, f"+experiment=demo/{arm}", f"model={model}")) for model in ("moe", "small")
                )
                seconds = steps_in_turns({"moe": moe.step, "small": small.step}, max(STEPS))
            ours, twin = (in_span(seconds[model], STEPS, moe.config.evaluation.every) for model in ("moe", "small"))
            print(f"  {arm} rollouts: mixture {milliseconds(ours)}, {ratio(ours, twin)} of the dense twin's {milliseconds(twin)}",
                  flush=True)  # fmt: skip
