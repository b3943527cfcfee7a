"""The time that a grid will take, by the pace of earlier runs."""

import pytest

from harness.errors import UserError
from sweeps.ledger import Sweep
from sweeps.pace import cost, estimate
from tests.sweeps.conftest import planned


def test_the_time_that_a_grid_takes_counts_the_steps_that_are_left(tiny):
    """An earlier run took 0.5 s a step, another of 3 s a step had another shape. Of 60 and 60 steps one run has 20 behind it:
    100 steps, 50 s."""
    first, second, other = (tiny("steps=60", *more) for more in (["seed=0"], ["seed=1"], ["task.length=8"]))
    place = Sweep(first.path.parent)
    for run, config, seconds in (("a", first, 30), ("b", other, 180)):
        place.log("planned", [run], arm="bf16 ppo", seed=0, steps=60, cost=cost(config))
        place.log("ended", [run], state="done", job="", steps=60, seconds=seconds)
    (second.path / "checkpoints" / "step-00000020").mkdir(parents=True)
    told = estimate({"c": first, "d": second}, ["c", "d"])
    assert told == "; 100 steps, 0:50 (minutes:seconds) of runs, by the pace of 1 earlier ones"


def test_a_ledger_of_another_sweep_that_cannot_be_read_stops_no_launch(tiny, tmp_path):
    """One is a folder, one holds words for numbers. A ledger of one's own is named."""
    config = tiny("steps=60")
    for name in ("folder", "words"):
        other = Sweep(tmp_path / name)
        planned(other, "a")
        if name == "folder":
            (other.home / "ledger.jsonl").unlink()
            (other.home / "ledger.jsonl").mkdir()
            with pytest.raises(UserError, match=r"ledger.jsonl: unreadable \(Is a directory\); make it readable,"):
                other.states()
        else:
            other.log("ended", ["a"], state="done", job="", steps="x", seconds=[1])
            other.log("ended", ["a"], state="done", job="", steps=0, seconds=1)
    moved = config.model_copy(update={"run": config.run.model_copy(update={"root": str(tmp_path)})})
    assert estimate({"a": moved}, ["a"]) == "; time unknown: no finished run of this shape yet"
