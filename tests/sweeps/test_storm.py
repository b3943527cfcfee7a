"""Thirty blows at random moments, and the same command after each: every metric is that of undisturbed runs."""

import os
import random
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from harness.run.folder import RunFolder, run_folders
from sweeps.ledger import Sweep
from tests.harness.test_trainer import untimed
from tests.sweeps.conftest import rows, until
from tests.sweeps.test_blows import servers
from tests.sweeps.test_local import launch

BLOWS = ["run"] * 20 + ["server"] * 5 + ["ctrl-c"] * 3 + ["launcher"] * 2
"""Whom each blow hits: SIGKILL a run, the fork server or the launcher; SIGINT all of them, as from a terminal."""
GRID = ["seed=0,1,2,3,4,5,6,7", "steps=24", "checkpoint.every=4", "rollout/precision=fp8_tensor", "correction=token_truncate",
        "hydra.launcher.parallel=2"]  # fmt: skip
PATIENCE = 40
"""Commands after which the storm counts as lost."""


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
    rng = random.Random(2026)
    blows = rng.sample(BLOWS, len(BLOWS))
    calm, storm = tmp_path / "calm", tmp_path / "storm"
    code, output = launch(tmp_path, *GRID, "run.sweep=calm")
    assert code == 0, output
    for _ in range(PATIENCE):
        launcher = launch(tmp_path, *GRID, "run.sweep=storm", wait=False)
        while blows and launcher.poll() is None:
            moment = progress(storm) + rng.randint(1, 8)
            until(lambda: progress(storm) >= moment or launcher.poll() is not None)  # noqa: B023 - called here
            if strike(blows[0], launcher, rng) and blows.pop(0) in ("ctrl-c", "launcher"):
                break
        output, _ = launcher.communicate()
        assert "Traceback" not in output, output
        assert "failed" not in {state.state for state in Sweep(storm).states().values()}
        if launcher.returncode == 0:
            break
    assert not blows, f"the runs were done before {len(blows)} of the blows"
    assert launcher.returncode == 0 and record(storm) == record(calm)
