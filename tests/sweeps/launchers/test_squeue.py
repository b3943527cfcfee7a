"""The states of the ledger and those of Slurm together."""

import json

from sweeps.launchers.squeue import Job, merge_states
from tests.sweeps.conftest import planned


def job(state, batch="b", index=0):
    return Job(f"7_{index}", state, "Resources", batch, index)


def test_what_slurm_knows_corrects_the_ledger(sweep):
    planned(sweep, *"abcdefg")
    sweep.log("submitted", "abcdefg", batch="b")
    sweep.log("started", ["b", "c", "f", "g"], job="7_1", host="n1", pid=1, step=0)
    sweep.log("ended", ["f"], state="interrupted", error="killed by SIGKILL", job="7_5")
    (sweep.home / "batches").mkdir(parents=True)
    (sweep.home / "batches" / "b.json").write_text(json.dumps([[run] for run in "abcdefg"]))
    sweep.folder("g").path.mkdir()
    sweep.folder("g").status("done")
    slurm = ["PENDING", "RUNNING", "NODE_FAIL", "CANCELLED", "RUNNING", "RUNNING", "COMPLETED"]
    told = merge_states(sweep, sweep.states(), [job(state, index=i) for i, state in enumerate(slurm)])
    assert {run: state.state for run, state in told.items()} == {
        "a": "pending",
        "b": "running",
        "c": "interrupted",  # its process cannot be alive
        "d": "interrupted",  # it never came to start
        "e": "submitted",
        "f": "interrupted",
        "g": "done",  # its process was killed after its last word in the folder and before that in the ledger
    }
    assert told["c"].error == "job 7_2 ended as NODE_FAIL" and told["a"].error == "Resources"
    gone = merge_states(sweep, sweep.states(), [])
    assert gone["a"].state == "interrupted" and "Slurm does not know it any more" in gone["a"].error
