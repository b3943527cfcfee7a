"""The clock of the day may be set while a run is under way. It dates what is recorded, and no duration is read from it."""

import ast
import time
from collections import Counter
from pathlib import Path

from harness.run.signals import RunProgress

DATES = {
    "harness/run/folder.py": 2,  # a status and an event
    "sweeps/ledger.py": 1,  # an event
    "sweeps/watch/summary.py": 1,  # how long a run has been silent, by the dates of its files
}
"""File -> calls of time.time."""


def test_the_clock_of_the_day_is_asked_for_dates_alone():
    found: Counter[str] = Counter()
    for file in (file for room in ("algos", "harness", "sweeps", "faultline") for file in Path(room).rglob("*.py")):
        calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        found[str(file)] += sum(ast.unparse(call.func) == "time.time" for call in calls)
    assert +found == DATES


def test_the_time_left_ignores_a_clock_that_was_set_back(monkeypatch, capsys):
    """One step of two took two seconds by the monotonic clock, while the other went back by a day."""
    moments = iter((10.0, 12.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(moments))
    monkeypatch.setattr(time, "time", lambda: 0.0)
    RunProgress(0, 2).show(1, {"reward/rollout": 0.5})
    assert "about 2 s left" in capsys.readouterr().out
