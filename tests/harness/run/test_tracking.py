"""The W&B mirror, really written offline: the file holds the run's configuration and every step."""

import signal
import subprocess
import sys

import psutil
import pytest
import wandb

from harness.run.folder import RunFolder
from tests.harness.paused_runs import is_paused, signal_when_paused, start, wait_for_end
from tests.harness.train.test_trainer import folder_of
from tests.waiting import until

pytestmark = pytest.mark.slow


def run(config) -> RunFolder:
    """In a process of its own, as W&B keeps state in the process that called it."""
    wait_for_end(start(config))
    return folder_of(config)


def records(folder: RunFolder) -> str:
    (path,) = folder.path.glob("wandb/offline-run-*/run-*.wandb")
    assert folder.path.name in path.name  # the id is the hash of the config
    done = subprocess.run([sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_offline_without_a_key(tiny, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    folder = run(tiny("tracking=wandb", "steps=3"))
    text = records(folder)
    assert '"eval/reward"' in text or "eval/reward" in text
    for row in folder.metrics()[:-1]:
        assert repr(row["actor/grad_norm"]) in text
    assert not list(folder.path.glob("wandb/**/requirements.txt.bak"))


def test_a_branch_has_a_job_type_of_its_own(tiny):
    config = tiny("tracking=wandb", "tracking.mode=offline", "steps=1", "seed=7")
    with folder_of(config).claim() as folder:
        folder.log_event("branched", 0, origin="elsewhere")
    text = records(run(config))
    assert '"branch"' in text and '"train"' not in text


def test_a_mirror_that_cannot_be_written_does_not_stop_the_run(tiny):
    """A file stands where W&B's folder would be made."""
    config = tiny("tracking=wandb", "tracking.mode=offline", "steps=2", "seed=4")
    path = folder_of(config).path
    path.mkdir(parents=True)
    (path / "wandb").write_text("in the way")
    folder = run(config)
    assert folder.state == "done" and len(folder.metrics()) == 3


@pytest.mark.parametrize("inherited", [False, True], ids=["own service", "service of the parent process"])
def test_an_unreachable_server_leaves_the_mirror_offline(inherited, tiny, monkeypatch):
    """Nothing listens on the port: W&B gives up after its time-out and the mirror is written offline."""
    monkeypatch.delenv("WANDB_SERVICE", raising=False)
    if inherited:
        wandb.setup()
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "5")
    folder = run(tiny("tracking=wandb", "steps=2", "seed=5"))
    assert folder.state == "done" and "grad_norm" in records(folder)


def test_no_secret_reaches_the_run_folder(tiny, monkeypatch):
    """A key in the environment, with tracking kept offline: no file of the folder holds it."""
    secret = "5ecre7" * 6 + "abcd"
    monkeypatch.setenv("WANDB_API_KEY", secret)
    folder = run(tiny("tracking=wandb", "tracking.mode=offline", "steps=2", "seed=3"))
    for path in folder.path.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path


def test_a_job_that_is_cancelled_ends_its_log_with_where_it_was_saved(tiny, monkeypatch):
    """Slurm's scancel sends SIGTERM to every process of a job, W&B's own too, which ends at once."""
    monkeypatch.delenv("WANDB_SERVICE", raising=False)  # of a test before: the run would have no process of its own
    config = tiny("tracking=wandb", "tracking.mode=offline", "steps=5", "seed=6")
    folder = folder_of(config)
    process = start(config, "row 3")
    until(lambda: is_paused(process), process.is_alive)
    (mirror,) = [child for child in psutil.Process(process.pid).children(recursive=True) if child.name() == "wandb-core"]
    mirror.terminate()
    until(lambda: mirror.status() == psutil.STATUS_ZOMBIE, process.is_alive)
    signal_when_paused(process, signal.SIGTERM)
    wait_for_end(process, code=128 + signal.SIGTERM)
    told = (folder.path / "log.txt").read_text()
    assert "Traceback" not in told and "ConnectionResetError" not in told
    assert told.splitlines()[-1] == f"preempted: {folder.path}: SIGTERM, saved at step 3/5; goes on from there"
