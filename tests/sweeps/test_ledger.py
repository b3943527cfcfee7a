"""The ledger: states from events, damaged lines, a full disk."""

import pytest

from harness.errors import UserError
from sweeps.launch import plan
from tests.sweeps.conftest import planned


def test_events_become_states(sweep):
    planned(sweep, "a", "b", "c", "d", "e")
    sweep.log("submitted", ["a", "b", "c", "e"], batch="x")
    sweep.log("started", ["a", "b", "c"], job="7_0", host="n1", pid=1, step=0)
    sweep.log("ended", ["a"], state="done", job="7_0")
    sweep.log("cancelled", ["b"])
    sweep.log("ended", ["b"], state="preempted", job="7_0")  # how a cancelled run ends
    sweep.log("ended", ["c"], state="preempted", job="7_0")
    sweep.log("cancelled", ["e"])
    sweep.log("started", ["e"], job="7_0", host="n1", pid=1, step=0)  # its process was starting meanwhile
    sweep.log("ended", ["e"], state="interrupted", job="7_0")
    assert {run: state.state for run, state in sweep.states().items()} == {
        "a": "done",
        "e": "cancelled",
        "b": "cancelled",
        "c": "preempted",
        "d": "queued",
    }


def test_starts_are_counted_from_one_and_the_same_step(sweep):
    planned(sweep, "a")
    for step in (0, 0, 5, 5, 5):
        sweep.log("started", ["a"], job="1", host="n", pid=1, step=step)
    assert sweep.states()["a"].starts == 3
    sweep.log("submitted", ["a"], batch="x")  # a person has looked at it
    assert sweep.states()["a"].starts == 0


@pytest.mark.parametrize(
    "damage",
    [
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"event": "planned"}',
        b'{"event": "x", "run": "a"}',
        b'{"event": [], "run": "a"}',
        b'{"event": "planned", "run": "a", "arm": "bf16 ppo", "seed": 0}',
        b'{"event": "submitted", "run": "a"}',
        b'{"event": "started", "run": "a", "time": 1}',
        b'{"event": "started", "run": "a", "job": "7_0", "step": "0"}',
        b'{"event": "ended", "run": "a"}',
        b'{"event": "ended", "run": "a", "state": "failed", "error": 1}',
    ],
)
def test_a_damaged_line_is_named_and_loses_nothing_else(sweep, damage):
    planned(sweep, "a")
    with open(sweep.home / "ledger.jsonl", "ab") as file:
        file.write(damage)  # cut short, without its newline
    sweep.log("ended", ["a"], state="done", job="")
    assert sweep.states()["a"].state == "done"
    assert len(sweep.damaged) == 1 and "ledger.jsonl:2: not an event" in sweep.damaged[0]


def test_a_run_whose_plan_was_lost_is_found_by_its_folder(sweep, tiny):
    config = tiny("seed=3")
    plan(sweep, {config.digest: config}, {})
    (sweep.home / "ledger.jsonl").write_text("rubbish\n")
    sweep.log("submitted", [config.digest], batch="x")
    assert sweep.states()[config.digest].seed == 3 and sweep.states()[config.digest].state == "submitted"


def test_a_full_disk_is_told(sweep, monkeypatch):
    """/dev/full, which refuses every byte as a full disk does."""
    sweep.home.mkdir(parents=True)
    monkeypatch.setattr("harness.run.jsonl.open_own", lambda path, mode: open("/dev/full", mode))  # noqa: SIM115
    with pytest.raises(UserError, match=r"\.sweep: cannot write \(No space left on device\); free some space"):
        planned(sweep, "a")
