"""A launch that is refused before anything starts, and one whose folder is moved away."""

from multiprocessing import Process

import pytest

from harness.errors import UserError
from sweeps.launch import launch, plan
from sweeps.launchers.local import Local
from sweeps.launchers.pool import Pool, _Started
from sweeps.ledger import Sweep, is_claimed
from tests.sweeps.conftest import launch as launched
from tests.sweeps.conftest import output, run_at_point, start


def test_two_launchers_and_an_edited_config(sweep, tiny):
    configs = [tiny(f"seed={seed}") for seed in (0, 1)]
    place = Sweep(configs[0].path.parent)
    plan(place, {c.digest: c for c in configs}, {})
    with place.lock.hold(), pytest.raises(UserError, match=r"another launcher .* is working on this sweep"):
        launch(configs, Local)
    with pytest.raises(UserError, match=r"1 of the 1 runs are not among the 2 .*actor.lr=0.1 \(there 0.0003\).*extend=true"):
        launch([tiny("actor.lr=0.1")], Local)
    assert not (place.path / tiny("actor.lr=0.1").digest).exists()


def test_one_command_launches_one_sweep(tiny):
    with pytest.raises(UserError, match="one command launches one sweep"):
        launch([tiny("run.sweep=bad"), tiny("run.sweep=worse")], Local)


def test_a_sweep_that_is_moved_away_while_it_runs_is_named_and_not_begun_again(tiny, monkeypatch):
    """Its only run "runs" while the folder is renamed, and ends afterwards."""
    config = tiny("seed=0")
    place = Sweep(config.path.parent)

    def fill(pool, waiting):
        if place.path.exists():
            place.path.rename(place.path.with_name("moved"))
            pool._log_outcome(waiting.pop(), _Started(Process(), 0, 0.0))
            is_claimed(place.folder(config.digest))

    monkeypatch.setattr(Pool, "fill", fill)
    with pytest.raises(UserError, match="was moved or removed while a launcher worked on it; put it back, then give the same"):
        launch([config], Local)
    assert not place.path.exists()


@pytest.mark.slow
def test_a_sweep_that_is_moved_away_from_its_runs_goes_on_where_it_is_put_back(tmp_path):
    """A real run stands still after row 4 of 8, before its second checkpoint, while the folder of its sweep is renamed."""
    grid = ["seed=0", "steps=8", "checkpoint.every=3", "run.sweep=here"]
    sweep, moved = Sweep(tmp_path / "here"), tmp_path / "moved"
    process = start(tmp_path, *grid, point="row 4")
    run = run_at_point(sweep)
    (digest,) = sweep.states()
    sweep.path.rename(moved)
    run.goes_on()
    said = output(process)
    assert process.returncode == 2 and "Traceback" not in said, said
    remedy = "was moved or removed while a launcher worked on it; put it back, then give the same command again"
    assert said.splitlines()[-1] == f"{sweep.path}: {remedy}"
    assert not sweep.path.exists()
    log = (moved / digest / "log.txt").read_text()
    assert "its folder was moved or removed; put it back, then start again" in log and "Traceback" not in log
    moved.rename(sweep.path)
    code, said = launched(tmp_path, *grid)
    assert code == 0, said
    assert sweep.folder(digest).state == "done" and len(sweep.folder(digest).metrics()) == 9
