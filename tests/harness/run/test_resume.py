"""Real processes, really killed: the metrics are those of a run that was never disturbed, bit for bit."""

import os
import signal
from pathlib import Path

import pytest

import harness.run.loop
from harness.run.folder import FINISHED, RunFolder
from harness.run.loop import Run, train
from tests.harness.paused_runs import signal_when_paused, start, wait_for_end
from tests.harness.train.test_trainer import folder_of, untimed
from tests.waiting import until

pytestmark = pytest.mark.slow

OVERRIDES = ["steps=20", "checkpoint.every=5", "actor.num_minibatches=2", "rollout/precision=fp8_tensor",
             "correction=token_truncate"]  # fmt: skip


def lines(folder: RunFolder) -> int:
    path = folder.path / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def killed(config, point: str) -> None:
    process = start(config, point)
    signal_when_paused(process, signal.SIGKILL)
    wait_for_end(process, code=-signal.SIGKILL)


@pytest.fixture
def undisturbed(tiny):
    config = tiny(*OVERRIDES, "run.sweep=undisturbed")
    wait_for_end(start(config))  # the first time; it is skipped when it is done
    return untimed(folder_of(config).metrics())


@pytest.mark.parametrize("points", [("row 1", "row 7"), ("writing 5", "row 17"), ("writing 15",)])
def test_sigkill_at_any_point(tiny, undisturbed, points):
    """After the first step, between checkpoints, while one is written, near the end; and twice in a run."""
    config = tiny(*OVERRIDES)
    folder = folder_of(config)
    for point in points:
        killed(config, point)
    wait_for_end(start(config))
    assert folder.state in FINISHED  # whether so small a run collapses is the processor's last bits' choice
    assert untimed(folder.metrics()) == undisturbed
    evaluated = [row for row in undisturbed if "eval/reward" in row]
    assert [row["step"] for row in folder.questions()] == [row["step"] for row in evaluated]
    means = [sum(row["held_out/own"]) / len(row["held_out/own"]) for row in folder.questions()]
    assert means == pytest.approx([row["eval/reward"] for row in evaluated])


def test_a_checkpoint_is_on_disk_only_after_the_rows_before_it(tiny, monkeypatch):
    """So that a power failure cannot leave a checkpoint that is ahead of the metrics: the order of what was waited for."""
    order, sync, rename = [], os.fsync, Path.rename

    def synced(descriptor):
        order.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        sync(descriptor)

    def renamed(path, target):
        order.append(f"rename to {Path(target).name}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    train(tiny("steps=1", "seed=11"))
    named = order.index("rename to step-00000001")
    assert {"metrics.jsonl", "questions.jsonl", "state.json", "manifest.json", "rollouts.safetensors"} <= set(order[:named])
    assert order[named + 1] == "checkpoints"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGUSR2, 140)])
def test_a_signal_saves_a_checkpoint_and_the_run_resumes(tiny, undisturbed, number, code):
    config = tiny(*OVERRIDES, f"run.sweep=signal-{code}")
    folder = folder_of(config)
    process = start(config, "row 3")
    signal_when_paused(process, number)
    wait_for_end(process, code=code)
    assert folder.state == "preempted" and lines(folder) == 3
    assert [(e["signal"], e["step"]) for e in folder.events() if e["kind"] == "preempted"] == [(number.name, 3)]
    wait_for_end(start(config))
    assert untimed(folder.metrics()) == undisturbed
    assert lines(folder) == 21  # no step was done twice


def test_a_signal_ends_a_warm_start_at_once(tiny):
    """The warm start has nothing to save, and may take longer than a cluster waits: an hour's worth of steps here."""
    config = tiny(*OVERRIDES, "run.sweep=cold", "warmstart.steps=100000")
    folder = folder_of(config)
    process = start(config)
    until(lambda: "warm start 50/" in log(folder), process.is_alive)
    process.terminate()
    wait_for_end(process, code=128 + signal.SIGTERM)
    assert folder.state == "preempted" and not folder.metrics()
    assert [(e["step"], e["signal"]) for e in folder.events() if e["kind"] == "preempted"] == [(0, "SIGTERM")]
    # The signal may fall between a line of progress and its end.
    assert log(folder).rstrip().endswith(f"preempted: {folder.path}: SIGTERM, at step 0/20; goes on from there")


def test_a_resumed_run_that_is_stopped_before_its_next_step_keeps_the_step_that_it_had(tiny, monkeypatch):
    """Once while it records what it is, once while it makes its engines."""
    config = tiny("steps=2", "checkpoint.every=1", "seed=12")
    folder = folder_of(config)
    for place, name in ((RunFolder, "log_metrics"), (harness.run.loop, "_add_provenance"), (Run, "resume")):
        before = getattr(place, name)
        with monkeypatch.context() as patch, pytest.raises(SystemExit, match="143"):
            patch.setattr(place, name, lambda *given, before=before: (before(*given), signal.raise_signal(signal.SIGTERM)))
            train(config)
        status = folder.read("status.json")
        assert (status["state"], status["step"]) == ("preempted", 1), name
    assert [event["step"] for event in folder.events() if event["kind"] == "preempted"] == [1, 1, 1]


def log(folder: RunFolder) -> str:
    path = folder.path / "log.txt"
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "manifest", "rows"])
def test_a_damaged_checkpoint_is_set_aside_for_the_one_before(tiny, undisturbed, damage):
    """rows: the checkpoint is sound, and a row before it was deleted. Going on would leave the record with a hole."""
    config = tiny(*OVERRIDES, f"run.sweep=damaged-{damage}")
    folder = folder_of(config)
    killed(config, "written 10")
    newest = folder.checkpoints[folder.checkpointed]
    victim = max(newest.rglob("*.pt"), key=lambda p: p.stat().st_size)
    content = victim.read_bytes()
    match damage:
        case "truncate":
            victim.write_bytes(content[: len(content) // 2])
        case "flip":
            victim.write_bytes(content[:1000] + bytes([content[1000] ^ 1]) + content[1001:])
        case "remove":
            victim.unlink()
        case "manifest":
            (newest / "manifest.json").write_text("{")
        case "rows":
            rows = (folder.path / "metrics.jsonl").read_text().splitlines(keepends=True)
            del rows[folder.checkpointed - 2]
            (folder.path / "metrics.jsonl").write_text("".join(rows))
    wait_for_end(start(config))
    damaged = [e for e in folder.events() if e["kind"] == "checkpoint_damaged"]
    assert len(damaged) == 1 and damaged[0]["step"] == int(newest.name.removeprefix("step-"))
    assert "using the checkpoint before it" in (folder.path / "log.txt").read_text()
    assert untimed(folder.metrics()) == undisturbed


def test_a_disk_that_refuses_a_checkpoint_loses_nothing_recorded(tiny, undisturbed):
    """The kernel refuses a file beyond 50 kB, in the middle of torch.save: room for the records, not for a checkpoint."""
    config = tiny(*OVERRIDES, "run.sweep=full")
    folder = folder_of(config)
    wait_for_end(start(config, largest=50_000), code=75)  # what its surroundings refused: it may be tried again
    log = (folder.path / "log.txt").read_text()
    assert "cannot write" in log and "resumes from its last checkpoint" in log and "Traceback" not in log
    assert folder.state == "interrupted" and lines(folder) == 5 and not list((folder.path / "checkpoints").iterdir())
    wait_for_end(start(config))
    assert untimed(folder.metrics()) == undisturbed
