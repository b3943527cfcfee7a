"""Runs in W&B equal those in their folders: offline files, whole, in fragments or damaged, and a server's."""

import os
import shutil
import subprocess
import sys

import pandas as pd
import psutil
import pytest
import wandb

from analysis.load import load
from harness.compose import compose
from harness.config import parse
from harness.errors import UserError
from harness.run.wandb import Tracker
from tests.analysis.fake_wandb import FakeServer
from tests.analysis.synthetic import write
from tests.harness.conftest import TINY
from tests.waiting import until

FP8 = "rollout/precision=fp8_tensor"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Two runs, mirrored offline; of the second the fragments of a run that was cut short at 60 and resumed from 51."""
    root = tmp_path_factory.mktemp("sweep")
    whole = write(root, "rollout/precision=fp32", steps=20)
    cut = write(root, FP8, steps=100, collapse=60)
    mirror("offline", f"{whole.path}", f"{cut.path}:0:60", f"{cut.path}:51:")
    return root


def mirror(mode, *parts, **environment):
    command = [sys.executable, "-m", "tests.analysis.mirror", mode, *parts]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def tidy(found):
    """Frames without the ids, which folders written by hand do not share with W&B."""
    runs = found.runs.set_index(["arm", "seed"]).sort_index()
    steps = found.steps.join(found.runs[["arm", "seed"]], on="run").drop(columns="run")
    return runs.sort_index(axis=1), steps.sort_values(["arm", "seed", "step"]).sort_index(axis=1).reset_index(drop=True)


def same(one, other):
    for left, right in zip(tidy(one), tidy(other), strict=True):
        pd.testing.assert_frame_equal(left, right, check_exact=True, check_categorical=False)


@pytest.mark.slow
def test_offline_files_give_the_frames_of_the_folders(sweep):
    offline = load(f"wandb-offline:{sweep}")
    same(load(sweep), offline)
    assert offline.caveats == []
    same(offline, load(f"wandb-offline:{sweep}"))  # from the cache


@pytest.mark.slow
def test_a_truncated_file_is_read_up_to_the_damage(sweep, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(sweep, copy, symlinks=True)
    last = sorted(copy.glob("*fp8*/wandb/offline-run-*/run-*.wandb"), key=lambda path: path.parent.name)[-1]
    data = last.read_bytes()
    last.write_bytes(data[: len(data) // 2])
    found = load(f"wandb-offline:{copy}")
    run = found.runs.index[found.runs.precision == "fp8_tensor"][0]
    steps = found.steps.step[found.steps.run == run]
    assert list(steps) == list(range(len(steps))) and 60 < len(steps) < 101
    assert any("damaged, read up to byte" in problem for problem in found.caveats)
    assert found.runs.state[run] == "running"  # of its end there is no word


@pytest.mark.slow
def test_every_flipped_byte_is_noticed_or_harmless(sweep, tmp_path):
    """The checksum covers each piece; a flip in a length makes it fail too. Rows before the damage stay as they are."""
    path = next(sweep.glob("fp32*/wandb/offline-run-*/run-*.wandb"))
    from analysis.wandb_runs import _damaged, _records

    data = path.read_bytes()
    whole = [content for _, content in _records(data)]
    assert not _damaged(data, max(end for end, _ in _records(data)))
    for place in range(7, len(data), 997):
        flipped = data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]
        found = list(_records(flipped))
        kept = [content for _, content in found]
        assert kept == whole[: len(kept)] and len(kept) < len(whole)
        assert _damaged(flipped, found[-1][0] if found else 0)


@pytest.mark.slow
def test_an_empty_file_is_named(sweep, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(sweep, copy, symlinks=True)
    next(copy.glob("*fp32*/wandb/offline-run-*/run-*.wandb")).write_bytes(
        b":W&B\xbe\xe1\x00"
    )  # all that a kill at the start leaves
    found = load(f"wandb-offline:{copy}")
    assert len(found.runs) == 1 and any("no config of this harness in it" in problem for problem in found.caveats)


def test_a_folder_without_offline_runs(tmp_path):
    with pytest.raises(UserError, match="no offline W&B run below it"):
        load(f"wandb-offline:{tmp_path}")


@pytest.fixture
def server(tmp_path, monkeypatch):
    fake = FakeServer()
    for name, value in {"WANDB_BASE_URL": fake.url, "WANDB_API_KEY": "0" * 40, "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    yield fake
    fake.close()


@pytest.mark.slow
def test_a_server_gives_the_frames_of_the_folders(server, tmp_path):
    """wandb 0.31 against the local fake: logged online by the harness, read back through wandb.Api."""
    for seed in (0, 1):
        write(tmp_path / "s", FP8, seed=seed, steps=100, collapse=60)
    mirror("online", *(str(path) for path in sorted((tmp_path / "s").iterdir())))
    assert [run["group"] for run in server.runs.values()] == ["default"] * 2
    assert all(run["alerts"] == ["collapse: drawdown"] for run in server.runs.values())
    assert all(run["summary"]["collapse/onset"] == 70 for run in server.runs.values())
    same(load(tmp_path / "s"), load("wandb:someone/faultline:default"))
    with pytest.raises(UserError, match="no run in it; the form is"):
        load("wandb:someone/faultline:nosuch")
    assert server.unknown == []


@pytest.mark.slow
def test_a_resumed_online_run_is_one_run(server, tmp_path):
    folder = write(tmp_path / "s", FP8, steps=100, collapse=60)
    mirror("online", f"{folder.path}:0:60")
    mirror("online", f"{folder.path}:51:")
    assert len(server.runs) == 1
    same(load(tmp_path / "s"), load("wandb:someone/faultline"))


@pytest.mark.slow
def test_an_unreachable_server_is_named(monkeypatch, tmp_path):
    for name, value in {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "0" * 40, "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="check WANDB_BASE_URL, WANDB_API_KEY"):
        load("wandb:someone/faultline")


@pytest.mark.slow
def test_the_mirror_of_a_killed_process_holds_what_was_flushed(tmp_path):
    """Killed without warning once the flush of every second has written the last row."""
    folder = write(tmp_path / "s", FP8, steps=30)
    code = f"""
import signal
from tests.analysis.mirror import *
config = parse(RunFolder({str(folder.path)!r}).read("config.json") | {{"tracking": {{"mode": "offline", "project": "x"}}}})
tracker = Tracker(config, RunFolder({str(folder.path)!r}).path)
for row in RunFolder({str(folder.path)!r}).metrics():
    tracker.log(row.pop("step"), row)
signal.pause()
"""
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    until(lambda: flushed(tmp_path / "s") == 31, lambda: process.poll() is None)
    process.kill()
    process.communicate()
    found = load(f"wandb-offline:{tmp_path / 's'}")
    assert len(found.steps) == 31 and found.runs.state.item() == "running" and found.runs.outcome.item() == "unfinished"


def flushed(sweep) -> int:
    """Rows of the one offline run of a sweep that lie in its file."""
    try:
        return len(load(f"wandb-offline:{sweep}").steps)
    except UserError:  # none has begun to be written
        return 0


def _end_service() -> None:
    """W&B's process of this process, and the environment variable by which it would be found again."""
    wandb.teardown()
    os.environ.pop("WANDB_SERVICE", None)


@pytest.mark.slow
def test_a_row_does_not_wait_for_its_mirror(tmp_path):
    """W&B's process stands still while 20 rows of 60 metrics are logged: a call that waits for its answer would not return.

    Twenty rows fit into the socket between the two processes. Once the socket is full, W&B makes the caller wait.
    """
    _end_service()  # that of an earlier test would be used instead of an own one
    config = parse(compose(*TINY, f"run.root={tmp_path}", "tracking=wandb", "tracking.mode=offline"))
    tracker = Tracker(config, tmp_path / "run")
    (mirror,) = [child for child in psutil.Process().children(recursive=True) if child.name() == "wandb-core"]
    mirror.suspend()
    try:
        for step in range(20):
            tracker.log(step, {f"x/{i}": float(step * i) for i in range(60)})
        assert mirror.status() == psutil.STATUS_STOPPED
    finally:
        mirror.resume()
    tracker.finish(0, state="done")
    _end_service()  # the next test must not look for this one
    assert len(load(f"wandb-offline:{tmp_path / 'run'}").steps) == 20
