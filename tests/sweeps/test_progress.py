"""The progress that a launcher shows."""

from harness.run.folder import RunFolder
from sweeps.progress import Display


def test_the_time_left_is_by_the_pace_of_steps_of_runs_that_go_on(tiny, monkeypatch, capsys):
    """A warm start ends within the first 100 s, then 20 steps take 100 s: 5 s a step, so 30 more take 150 s. The other failed."""
    first, second = (tiny("steps=60", f"seed={seed}") for seed in (0, 1))
    for config in (first, second):
        config.path.mkdir(parents=True)
    RunFolder(second.path).status("failed", step=20, steps=60)
    with Display([first, second], {c.digest: str(c.seed) for c in (first, second)}) as shown:
        for now, step in ((0, 0), (100, 10), (200, 30)):
            RunFolder(first.path).status("running", step=step, steps=60)
            monkeypatch.setattr("sweeps.progress.time.monotonic", lambda now=now: now)
            shown.update(force=True)
    lines = capsys.readouterr().err.splitlines()
    assert ["starting" in line for line in lines[:3]] == [True, True, False] and "50/120 steps" in lines[2]
    assert "about 2:30 left" in lines[2]
