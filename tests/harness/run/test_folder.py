"""The run folder: atomic, append-only, readable after any kill."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.errors import UserError
from harness.run.folder import RunFolder, run_folders
from harness.run.metrics import METRICS


@pytest.fixture
def folder(tmp_path):
    with RunFolder(tmp_path / "run").claim() as claimed:
        yield claimed


def test_metrics_come_back_to_the_bit(folder):
    values = {"actor/loss": 0.1 + 0.2, "actor/grad_norm": float("inf"), "rollout_corr/k3_kl": 5e-324}
    folder.log_metrics(0, values)
    assert folder.metrics() == [{"step": 0, **values}]


def test_the_later_row_of_a_step_counts(folder):
    for step, loss in ((0, 1.0), (1, 2.0), (2, 3.0), (1, 2.5)):
        folder.log_metrics(step, {"actor/loss": loss})
    assert [(r["step"], r["actor/loss"]) for r in folder.metrics()] == [(0, 1.0), (1, 2.5), (2, 3.0)]


def test_an_evaluation_that_a_resume_repeats_stands_once(folder):
    """A kill cut the line of step 2 short, and a resume from step 1 repeats both."""
    for step in (0, 1, 2):
        folder.log_questions(step, {"held_out/own": [0.5, step / 4]})
    path = folder.path / "questions.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    before = path.read_bytes()
    assert [row["step"] for row in folder.questions()] == [0, 1]
    for step in (1, 2):
        folder.log_questions(step, {"held_out/own": [0.5, step / 4]})
    assert folder.questions() == [{"step": step, "held_out/own": [0.5, step / 4]} for step in (0, 1, 2)]
    assert path.read_bytes().startswith(before)


def test_a_line_cut_short_costs_only_itself(folder):
    """A kill in the middle of a write: every prefix of the last line, then the run goes on."""
    for step in range(3):
        folder.log_metrics(step, {"actor/loss": float(step)})
    path = folder.path / "metrics.jsonl"
    whole = path.read_bytes()
    last = whole[: whole[:-1].rindex(b"\n") + 1]
    for cut in range(len(last) + 1, len(whole)):
        path.write_bytes(whole[:cut])
        folder.log_metrics(3, {"actor/loss": 3.0})
        steps = [row["step"] for row in folder.metrics()]
        assert steps in ([0, 1, 3], [0, 1, 2, 3]) and path.read_bytes().startswith(whole[:cut])


def test_rows_are_counted_against_a_step(folder):
    """The rows 2 and 4 of steps 0 to 5 are missing. A branch that began with step 3 lacks row 4 alone."""
    for step in (0, 1, 3, 5):
        folder.log_metrics(step, {"actor/loss": 0.0})
    assert [folder.missing_rows(step) for step in (0, 2, 3, 5, 6)] == [0, 0, 1, 2, 2]
    folder.log_event("branched", 3, origin="elsewhere")
    assert [folder.missing_rows(step) for step in (3, 5, 6)] == [0, 1, 1]


def test_a_copy_beside_a_checkpoint_is_none(folder):
    others = ("step-00000312.bak", "step-x", "step-", ".writing-4", "damaged-step-00000400")
    for name in ("step-00000312", "step-00000050", *others):
        (folder.path / "checkpoints" / name).mkdir(parents=True)
    assert {step: path.name for step, path in folder.checkpoints.items()} == {50: "step-00000050", 312: "step-00000312"}
    assert list(folder.checkpoints) == [50, 312] and folder.checkpointed == 312


def test_unknown_metrics_are_refused(folder):
    with pytest.raises(KeyError, match="no/such"):
        folder.log_metrics(0, {"no/such": 1.0})


def test_every_metric_says_what_it_is():
    assert all(metric.meaning and metric.unit for metric in METRICS.values())


def test_two_writers_are_kept_apart(folder):
    with pytest.raises(UserError, match="another process is running this very config"), RunFolder(folder.path).claim():
        pass


def test_a_full_disk_is_named_with_its_remedy(folder, monkeypatch):
    """/dev/full refuses every write as a full disk does."""
    monkeypatch.setattr("harness.run.jsonl.open_own", lambda path, mode: open("/dev/full", mode))  # noqa: SIM115
    with pytest.raises(UserError, match=r"No space left on device.*resumes from its last checkpoint"):
        folder.log_metrics(0, {"actor/loss": 0.0})


def test_status_is_replaced_atomically(folder):
    """A reader that looks all the time never sees half a file."""
    folder.status("running", step=0)

    stop = threading.Event()

    def read():
        while not stop.is_set():
            json.loads((folder.path / "status.json").read_text())

    with ThreadPoolExecutor(1) as threads:  # a fork of a large worker needs its memory once more
        reader = threads.submit(read)
        try:
            for step in range(500):
                folder.status("running", step=step, padding="x" * 5000)
        finally:
            stop.set()
    assert reader.result() is None


def test_unreadable_files_are_named(folder, tmp_path):
    (folder.path / "status.json").write_text("{half")
    with pytest.raises(UserError, match=r"status.json: unreadable .*delete this file: the run resumes"):
        _ = folder.state
    for wrong in ("[]", "{}", '{"state": "sleeping"}'):
        (folder.path / "status.json").write_text(wrong)
        with pytest.raises(UserError, match=r"status.json: not what a run writes there"):
            _ = folder.state
    with pytest.raises(UserError, match=r"config.json: missing; is .* a run folder"):
        folder.read("config.json")
    with pytest.raises(UserError, match="nowhere: no such folder"):
        run_folders(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no run folder in it"):
        run_folders(tmp_path / "empty")


def test_a_run_that_has_not_started_is_queued(tmp_path):
    assert RunFolder(tmp_path).state == "queued" and RunFolder(tmp_path).metrics() == []
