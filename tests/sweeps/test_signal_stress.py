"""Twelve blows at random moments, and the same command after each: every metric is that of undisturbed runs."""

import os
import random
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from harness.run.folder import RunFolder, run_folders
from sweeps.ledger import Sweep
from tests.harness.train.test_trainer import untimed
from tests.sweeps.conftest import rows
from tests.sweeps.servers import servers
from tests.sweeps.test_local import launch
from tests.waiting import until

BLOWS = ["run"] * 7 + ["server"] * 2 + ["ctrl-c"] * 2 + ["launcher"]
"""Whom each blow hits: SIGKILL a run, the fork server or the launcher; SIGINT all of them, as from a terminal."""
GRID = ["seed=0,1,2,3", "steps=24", "checkpoint.every=4", "rollout/precision=fp8_tensor", "correction=token_truncate",
        "hydra.launcher.parallel=2"]  # fmt: skip
PATIENCE = 20
"""Commands, and sweeps, after which the storm counts as lost."""


def progress(sweep: Path) -> int:
    """Grows with every row and every start of a run, and with nothing else: moments that no clock decides."""
    started = sum(event["event"] == "started" for event in Sweep(sweep).events())
    return started + sum(rows(RunFolder(path)) for path in sweep.glob("*") if (path / "config.json").exists())


def runs(launcher: int) -> list[psutil.Process]:
    return [run for server in servers(launcher) for run in server.children()]


def strike(blow: str, launcher: subprocess.Popen, rng: random.Random) -> bool:
    """Whether there was anybody to hit."""
    try:
        match blow:
            case "run":
                rng.choice(runs(launcher.pid)).kill()
            case "server":
                rng.choice(servers(launcher.pid)).kill()
            case "ctrl-c":
                os.killpg(launcher.pid, signal.SIGINT)
            case "launcher":
                launcher.kill()
    except (IndexError, ProcessLookupError, psutil.NoSuchProcess):
        return False
    return True


def record(sweep: Path) -> dict[str, list]:
    """The rows of each run but for their times, and its events of detectors."""
    found = {}
    for folder in run_folders(sweep):
        events = {event["detector"]: event["onset"] for event in folder.events() if "detector" in event}
        found[folder.path.name] = [folder.state, untimed(folder.metrics()), events]
    return found


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_storm_changes_no_metric_and_asks_for_no_hand(tmp_path):
    """A sweep after another, until all blows have fallen: on a fast machine the runs of one may end before."""
    rng = random.Random(2026)
    blows = rng.sample(BLOWS, len(BLOWS))
    code, output = launch(tmp_path, *GRID, "run.sweep=calm")
    assert code == 0, output
    for number in range(PATIENCE):
        if not blows:
            break
        storm = tmp_path / f"storm-{number}"
        weather(storm, blows, rng)
        assert record(storm) == record(tmp_path / "calm")
    assert not blows


def weather(storm: Path, blows: list[str], rng: random.Random) -> None:
    """Launch the sweep again and again until it is done, and take from `blows` those that fall meanwhile."""
    for _ in range(PATIENCE):
        launcher = launch(storm.parent, *GRID, f"run.sweep={storm.name}", wait=False)
        while blows and launcher.poll() is None:
            moment = progress(storm) + rng.randint(1, 8)
            until(lambda: progress(storm) >= moment or launcher.poll() is not None)  # noqa: B023 - called here
            if strike(blows[0], launcher, rng) and blows.pop(0) in ("ctrl-c", "launcher"):
                break
        output, _ = launcher.communicate()
        assert "Traceback" not in output, output
        assert "failed" not in {state.state for state in Sweep(storm).states().values()}
        if launcher.returncode == 0:
            return
    pytest.fail(f"{PATIENCE} commands did not finish the sweep")
