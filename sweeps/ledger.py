"""What happened to the runs of a sweep: an append-only file that launchers and jobs write, and the states that follow from it.

    <root>/<sweep>/.sweep/lock          held by the launcher that works on the sweep; tells who
                          ledger.jsonl  one event a line, see `EVENTS`
                          batches/      which runs each task of a Slurm array holds, written before it is submitted
                          jobs/<id>/    what submitit keeps of a job, and the output of the job itself
                          code/<digest> snapshots of the code
                          cancelled     its time of change is when the user last cancelled the sweep

A run's own folder stays the record of the run; the ledger adds what no run can know: that it was submitted, and how its
process ended.
"""

from __future__ import annotations

import fcntl
import functools
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from harness.arms import arm, arms
from harness.config import Config, RunConfig, explain
from harness.errors import Unavailable, UserError
from harness.recorded import recorded
from harness.run import jsonl
from harness.run.folder import FINISHED, RunFolder, writing
from sweeps import STARTED

EVENTS = {
    "planned": "a run belongs to the sweep: arm, seed, steps",
    "renamed": "its arm has another name, for the sweep got runs that differ from it in another key: arm",
    "submitted": "a launcher took it up: the batch given to Slurm, empty for the local launcher",
    "started": "its process began: job, host, pid, the step of its checkpoint",
    "ended": "its process ended: state, error, steps done, seconds",
    "cancelled": "the user cancelled it",
}
KEYS: dict[str, dict[str, type]] = {
    "planned": {"arm": str, "seed": int, "steps": int},
    "renamed": {"arm": str},
    "submitted": {"batch": str},
    "started": {"job": str, "step": int},
    "ended": {"state": str},
    "cancelled": {},
}
"""What an event must have besides `event`, `run` and `time`, or its line is damaged."""
ENDS = {
    "done": "finished",
    "collapsed": "finished, a detector saw a collapse",
    "failed": "failed by itself: it would fail again",
    "interrupted": "failed by its surroundings: killed, a lost node, a full disk; the same command again retries it",
    "preempted": "stopped by a signal, at a checkpoint if a step was done; resumes when its job or the same command starts again",
}
STUCK = 3
"""Starts from one and the same step after which a run is given up: its time limit is too short for a checkpoint."""


class RunState(NamedTuple):
    """arm, seed, steps: as planned. state: queued, submitted, running, cancelled or one of ENDS. job: that has or had it.

    step: of its checkpoint when it last started. starts: in a row from that step.
    """

    arm: str
    seed: int
    steps: int
    state: str = "queued"
    job: str = ""
    batch: str = ""
    error: str = ""
    step: int = 0
    starts: int = 0

    @property
    def name(self) -> str:
        return f"{self.arm} seed {self.seed}"


class Launcher(NamedTuple):
    """A process that holds the lock of a sweep."""

    host: str
    pid: int

    @property
    def here(self) -> bool:
        """Whether it runs on this machine."""
        return self.host == platform.node()

    def __str__(self) -> str:
        return f"another launcher (process {self.pid} on {self.host})"


class Sweep:
    """The folder of a sweep."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.home = self.path / ".sweep"
        self.damaged: list[str] = []
        """Lines of the ledger that the last reading could not understand."""

    def folder(self, run: str) -> RunFolder:
        return RunFolder(self.path / run)

    def config(self, run: str) -> Config:
        """The config of a run, which lies in its folder from when it was planned; its paths hold in any working directory.

        Raises UserError if the file is missing, damaged, or of a version of the code that had other keys.
        """
        try:
            config = Config.model_validate(self.folder(run).read("config.json"))
        except ValidationError as error:
            told = "; ".join(explain(problem) for problem in error.errors()[:3])
            raise UserError(f"{self.path / run / 'config.json'}: not a config of this version of the code: {told}") from None
        place = self.path.resolve()
        return config.model_copy(update={"run": RunConfig(root=str(place.parent), sweep=place.name)})

    def finished(self, run: str) -> bool:
        """Whether its folder says so. Not where that cannot be read: the run's own process will tell."""
        try:
            return self.folder(run).state in FINISHED
        except UserError:
            return False

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other launchers away. Raises UserError, naming the one that is at work, or if the user has cancelled meanwhile."""
        with writing(self.home):
            self.home.mkdir(parents=True, exist_ok=True)
            file = open(self.home / "lock", "a+")  # noqa: SIM115 (closed below; "w" would wipe the holder's name)
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"{self.path}: {self._holder()} is working on this sweep; wait for it or stop it") from None
            file.truncate(0)
            file.write(f"{platform.node()} {os.getpid()}\n")
            file.flush()
            self.check_cancelled()
            yield
            file.truncate(0)

    def launcher(self) -> Launcher | None:
        """The launcher that is at work on the sweep. One that has not written its name yet is still starting."""
        try:
            with open(self.home / "lock") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return None
        except BlockingIOError:
            holder = self._holder()
            return holder if holder.pid else None
        return None

    def mark_cancelled(self) -> None:
        """The user cancels now, which also means launchers that have started but do not hold the lock yet."""
        now = time.time()
        with writing(self.home):
            (self.home / "cancelled").touch()
            os.utime(self.home / "cancelled", (now, now))  # by the clock that `STARTED` is of, not by the file server's

    def check_cancelled(self) -> None:
        """Raises UserError if the user has cancelled the sweep since this process began."""
        with suppress(FileNotFoundError):
            if (self.home / "cancelled").stat().st_mtime > STARTED:
                raise UserError(f"{self.path}: cancelled after this was started; give the command again to go on")

    def _holder(self) -> Launcher:
        host, pid, *_ = *(self.home / "lock").read_text().split(), "?", "0"
        return Launcher(host, int(pid))

    # --- events --------------------------------------------------------------------------------------------------------

    def log(self, event: str, runs: Iterable[str], **more: Any) -> None:
        """Append one event of each of `runs`."""
        assert event in EVENTS
        now = round(time.time(), 3)
        with writing(self.home):
            self.home.mkdir(parents=True, exist_ok=True)
            jsonl.append(self.home / "ledger.jsonl", ({"event": event, "run": run, "time": now, **more} for run in runs))

    def events(self) -> list[dict[str, Any]]:
        """All events, oldest first. A line that is no event is left out and named in `damaged`."""
        path = self.home / "ledger.jsonl"
        self.damaged = []
        events = []
        for number, event in jsonl.read(path):
            if event is not None and _whole(event):
                events.append(event)
            else:
                self.damaged.append(f"{path}:{number}: not an event; left out, run folders and Slurm tell what it told")
        return events

    def states(self) -> dict[str, RunState]:
        """The state of each run of the sweep as the ledger alone tells it."""
        states: dict[str, RunState] = {}
        arms = functools.cache(self.arms)
        for event in self.events():
            run = event["run"]
            if event["event"] == "planned":
                planned = {key: event[key] for key in KEYS["planned"]}
                states[run] = states[run]._replace(**planned) if run in states else RunState(**planned)
            elif known := states.get(run) or self._planned(run, arms):
                states[run] = _after(known, event)
        return states

    def arms(self) -> dict[str, str]:
        """The arm of each run that has a readable config, by the name that a report gives it."""
        configs = {}
        for path in self.path.glob("*/config.json"):
            with suppress(UserError, KeyError, TypeError):  # what is no config has no arm
                config = recorded(RunFolder(path.parent).read("config.json"))
                arm(config)
                configs[path.parent.name] = config
        return {run: str(name) for run, name in arms(configs).items()}

    def _planned(self, run: str, arms: Callable[[], dict[str, str]]) -> RunState | None:
        """What the lost line said when `run` was planned; None if it has no folder."""
        try:
            config = self.config(run)
        except UserError:
            return None
        return RunState(arms()[run], config.seed, config.steps)

    def settle(self, run: str, state: RunState, why: str) -> RunState:
        """The state of a run whose process is gone without an `ended`: its folder may tell, else it was interrupted."""
        try:
            status = self.folder(run).read("status.json")
        except UserError:
            status = {"state": "queued"}
        if status["state"] in (*FINISHED, "failed", "preempted"):
            return state._replace(state=status["state"], error=status.get("error", ""))
        return state._replace(state="interrupted", error=why)


def claimed(folder: RunFolder) -> bool:
    """Whether a process holds the folder of a run."""
    try:
        with folder.claim():
            return False
    except Unavailable:
        return True


def _whole(event: dict[str, Any]) -> bool:
    """Whether it is one of EVENTS and has all that such an event must have."""
    needed = KEYS.get(event["event"]) if isinstance(event.get("event"), str) else None
    return needed is not None and all(isinstance(event.get(key), kind) for key, kind in {"run": str, **needed}.items())


def _after(state: RunState, event: dict[str, Any]) -> RunState:
    match event["event"]:
        case "renamed":
            return state._replace(arm=event["arm"])
        case "submitted":
            return state._replace(state="submitted", batch=event["batch"], job="", error="", starts=0)
        case "started":
            starts = state.starts + 1 if event["step"] == state.step else 1
            now = "cancelled" if state.state == "cancelled" else "running"  # cancelled while its process was starting
            return state._replace(state=now, job=event["job"], step=event["step"], starts=starts, error="")
        case "ended" if not (state.state == "cancelled" and event["state"] in ("preempted", "interrupted")):
            return state._replace(state=event["state"], error=event.get("error", ""))
        case "cancelled":
            return state._replace(state="cancelled")
    return state
