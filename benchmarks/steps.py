"""One RL step in several ways: equal responses computed once, compiled blocks, ZeRO's stages, a mixture of experts.

The trainers of these ways take turns, step by step, from the same start. As the policy learns, more responses become equal.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import count
from unittest.mock import patch

from benchmarks.measure import Case, trainer
from harness.train.model import engine

FP32 = "rollout/precision=fp32"
WAYS = {
    "equal rows": {"computed once": (FP32,), "every row": (FP32,)},
    "ZeRO of one rank": {f"stage {stage}": (FP32, f"actor.zero_stage={stage}") for stage in range(4)},
    "torch.compile": {"actor.compile=true": (FP32, "actor.compile=true"), "false": (FP32,)},
    **{
        f"mixture of experts, {arm} rollouts": {name: (f"+experiment=demo/{arm}", f"model={name}") for name in ("small", "moe")}
        for arm in ("fp32", "w4a4")
    },
}
"""Subject of a comparison -> name of each way to compute a step -> overrides of the config of a run that computes this way."""
SPANS = {"early": range(3, 13), "around step 30": range(29, 40), "from step 75": range(76, 99)}


def cases() -> Iterator[Case]:
    """Generate, for each comparison in `WAYS`, a case of the first step, which compiles, and one per span of steps in `SPANS`."""
    with tempfile.TemporaryDirectory() as cache, patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=cache):
        for what, ways in WAYS.items():
            with ExitStack() as stack:
                runs = {way: _steps(stack, way, overrides) for way, overrides in ways.items()}
                yield Case(f"{what}, first step", runs, rounds=1, warm=False)
                done = 1
                for name, span in SPANS.items():
                    for run in list(runs.values()) * (span.start - 2 - done):  # the first round of a case is left out
                        run()
                    done = span.stop - 1
                    yield Case(f"{what}, {name}", runs, rounds=len(span))


def _steps(stack: ExitStack, way: str, overrides: tuple[str, ...]) -> Callable[[], object]:
    """Return a function that trains the next step of a run. With way="every row", repeated responses are computed again."""
    steps = map(stack.enter_context(trainer(*overrides)).step, count(1))
    if way != "every row":
        return partial(next, steps)

    def every_row() -> None:
        with patch.object(engine, "distinct", lambda *_: (slice(None), slice(None))):
            next(steps)

    return every_row
