"""Kills and signals at random moments: python -m tests.sweeps.signal_stress --signals 12. Prints a `Tally` after each
sweep; exits 0 if all is 0.

The same command follows each of them until the sweep is done. A sweep after another is launched until all were sent, since the
runs of one may end before. Each is compared with a sweep that was left alone.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import psutil

from harness.run.folder import FINISHED, RunFolder, run_folders
from sweeps.ledger import Sweep
from tests.harness.train.test_trainer import untimed
from tests.sweeps.conftest import launch, output, rows, start
from tests.sweeps.launchers.fork_servers import servers
from tests.waiting import until

VICTIMS = ["run"] * 7 + ["server"] * 2 + ["ctrl-c"] * 2 + ["launcher"]
"""SIGKILL to a run, the fork server or the launcher; SIGINT to all of them, as from a terminal."""
GRID = ["seed=0,1,2,3", "steps=24", "checkpoint.every=4", "rollout/precision=fp8_tensor", "correction=token_truncate",
        "hydra.launcher.parallel=2"]  # fmt: skip
COMMANDS = 20
"""Commands after which a sweep that is not done counts as lost."""


class Tally(NamedTuple):
    """All 0 if nothing went wrong.

    lost: runs that never ended. twice: runs that were started again after they had ended. bits: runs whose metrics, state or
    detections differ from those of an undisturbed run. manual: runs that the same command would not have taken up again, and
    commands that refused to go on. tracebacks: commands and run logs that hold one.
    """

    lost: int = 0
    twice: int = 0
    bits: int = 0
    manual: int = 0
    tracebacks: int = 0


def send_signals(root: Path, count: int, seed: int) -> Tally:
    """Send `count` of them, drawn by `seed`, to sweeps below `root`."""
    rng = random.Random(seed)
    victims = drawn(count, rng)
    code, text = launch(root, *GRID, "run.sweep=undisturbed")
    assert code == 0, text
    expected, counted, number = records(root / "undisturbed"), Counter[str](), 0
    while victims:
        sweep = root / f"disturbed-{number}"
        disturb(sweep, victims, rng, counted)
        found = records(sweep)
        counted["lost"] += len(expected) - sum(state in FINISHED for state, *_ in found.values())
        counted["bits"] += sum(found.get(run) != record for run, record in expected.items())
        counted["twice"] += started_after_end(sweep)
        counted["tracebacks"] += sum("Traceback" in path.read_text(errors="replace") for path in sweep.glob("*/log.txt"))
        number += 1
        print(told(count - len(victims), Tally(**counted)), flush=True)
    return Tally(**counted)


def drawn(count: int, rng: random.Random) -> list[str]:
    """Whom the signals hit, in this order."""
    return rng.sample(VICTIMS * -(-count // len(VICTIMS)), count)


def told(count: int, tally: Tally) -> str:
    return f"{count} signals: {', '.join(f'{value} {name}' for name, value in tally._asdict().items())}"


def disturb(path: Path, victims: list[str], rng: random.Random, counted: Counter[str]) -> None:
    """Launch a sweep until it is done. Takes from `victims` those that were hit meanwhile, and counts what its commands print."""
    for _ in range(COMMANDS):
        launcher = start(path.parent, *GRID, f"run.sweep={path.name}")
        while victims and launcher.poll() is None:
            moment = progress(path) + rng.randint(1, 8)
            until(lambda: progress(path) >= moment or launcher.poll() is not None)  # noqa: B023 - called here
            if send(victims[0], launcher, rng) and victims.pop(0) in ("ctrl-c", "launcher"):
                break
        text = output(launcher)
        counted["tracebacks"] += "Traceback" in text
        counted["manual"] += launcher.returncode == 2
        counted["manual"] += sum(state.state == "failed" for state in Sweep(path).states().values())
        if launcher.returncode == 0:
            return


def progress(sweep: Path) -> int:
    """Grows with every row and every start of a run, and with nothing else: moments that no clock decides."""
    started = sum(event["event"] == "started" for event in Sweep(sweep).events())
    return started + sum(rows(RunFolder(path)) for path in sweep.glob("*") if (path / "config.json").exists())


def send(victim: str, launcher: subprocess.Popen, rng: random.Random) -> bool:
    """Whether there was anybody to hit."""
    try:
        match victim:
            case "run":
                rng.choice([run for server in servers(launcher.pid) for run in server.children()]).kill()
            case "server":
                rng.choice(servers(launcher.pid)).kill()
            case "ctrl-c":
                os.killpg(launcher.pid, signal.SIGINT)
            case "launcher":
                launcher.kill()
    except (IndexError, ProcessLookupError, psutil.NoSuchProcess):
        return False
    return True


def records(sweep: Path) -> dict[str, list]:
    """State, rows without their times, and onsets by detector, of each run."""
    found = {}
    for folder in run_folders(sweep):
        onsets = {event["detector"]: event["onset"] for event in folder.events() if "detector" in event}
        found[folder.path.name] = [folder.state, untimed(folder.metrics()), onsets]
    return found


def started_after_end(sweep: Path) -> int:
    """Runs that the ledger has as started again after they had ended."""
    over, again = set(), set()
    for event in Sweep(sweep).events():
        if event["event"] == "started" and event["run"] in over:
            again.add(event["run"])
        elif event["event"] == "ended" and event["state"] in FINISHED:
            over.add(event["run"])
    return len(again)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--signals", type=int, default=12)
    parser.add_argument("--seed", type=int, default=2026)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        tally = send_signals(Path(root), given.signals, given.seed)
    raise SystemExit(any(tally))


if __name__ == "__main__":
    main()
