"""A task of a Slurm array, called without Slurm."""

import json

from sweeps.launchers.requeue import ArrayTask
from tests.sweeps.conftest import planned


def test_damaged_runs_of_a_task_fail_alone(sweep, monkeypatch):
    """Three of them, so that none starts a process: what is told of the last shows that the task went on past the others."""
    damage = {"a": "", "b": "[]", "c": '{"nosuch": 1}'}
    planned(sweep, *damage)
    sweep.log("submitted", damage, batch="x")
    for run, text in damage.items():
        sweep.folder(run).path.mkdir()
        (sweep.folder(run).path / "config.json").write_text(text)
    (sweep.folder("a").path / "status.json").write_text("")
    (sweep.home / "batches").mkdir()
    (sweep.home / "batches" / "x.json").write_text(json.dumps([[*damage]]))
    for name, value in {"SUBMITIT_EXECUTOR": "slurm", "SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}.items():
        monkeypatch.setenv(name, value)
    ArrayTask(str(sweep.path), "x", 0, 1)()
    states = sweep.states()
    assert {run: state.state for run, state in states.items()} == dict.fromkeys(damage, "failed")
    assert "a/config.json: unreadable" in states["a"].error and "b/config.json: not what a run writes" in states["b"].error
    assert "c/config.json: not a config of this version" in states["c"].error and "\n" not in states["c"].error
