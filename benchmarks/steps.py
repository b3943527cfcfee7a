"""Helpers that measure several trainers in turns, step by step."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from benchmarks.measure import timed
from harness.compose import compose
from harness.config import parse
from harness.run.folder import RunFolder
from harness.train.trainer import Trainer
from harness.validate import check


@contextmanager
def trainer(root: str, *overrides: str) -> Iterator[Trainer]:
    """A context with the trainer of a run before its first step; the run's folder is created under `root`."""
    config = parse(compose(*overrides, "tracking=disabled", f"run.root={root}"))
    with RunFolder(config.path).claim() as folder:
        yield Trainer(check(config), folder)


def steps_in_turns(steps: Mapping[str, Callable[[int], object]], last: int) -> dict[str, dict[int, float]]:
    """Processor seconds of each run's steps 1 to `last`; the runs take turns at each step."""
    seconds: dict[str, dict[int, float]] = {name: {} for name in steps}
    for number in range(1, last + 1):
        for name, step in steps.items():
            seconds[name][number] = timed(partial(step, number))
    return seconds


def in_span(seconds: dict[int, float], span: range, evaluated: int) -> list[float]:
    """The seconds of the steps in a span, except those that evaluate, every `evaluated` steps."""
    return [seconds[step] for step in span if step % evaluated]
