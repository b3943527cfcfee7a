"""The record of a sweep: an append-only file that launchers and jobs write, and the states of its runs.

    <root>/<sweep>/.sweep/lock           held by the launcher at work; contains its identity
                          ledger.jsonl   one event a line, see `states.EVENTS`
                          launcher.json  how the sweep was launched last
                          batches/       which runs each task of a Slurm array holds, written before it is submitted
                          jobs/<id>/     submitit's files of a job, and the output of the job itself
                          code/<digest>  snapshots of the code
                          cancelled      the user's last cancellation, see `lock.LauncherLock`

The folder of a run remains the record of that run. ledger.jsonl adds facts that no run can record itself: its submission, and
the end of its process.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.arms import arms
from harness.config import Config, RunConfig, parse_recorded, recorded
from harness.errors import Unavailable, UserError
from harness.files import refuse_links, write_file, writing
from harness.run import jsonl
from harness.run.folder import FINISHED, RunFolder
from sweeps.lock import LauncherLock
from sweeps.states import ENDS, EVENTS, RunState, is_event


class Sweep:
    """A sweep on disk: its log of events, its lock and the folders of its runs."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.home = self.path / ".sweep"
        self.lock = LauncherLock(self.home)
        self.damaged: list[str] = []
        """Lines of the sweep's log, ledger.jsonl, that could not be parsed at the last reading."""

    def folder(self, run: str) -> RunFolder:
        return RunFolder(self.path / run)

    def config(self, run: str) -> Config:
        """The config of a run, with absolute paths. Raises UserError if it is missing, damaged, or of another version."""
        values = self.folder(run).read("config.json")
        try:
            config = parse_recorded(values)
        except UserError as error:
            problems = "; ".join(str(error).splitlines()[:3])
            raise UserError(f"{self.path / run / 'config.json'}: not a config of this version of the code: {problems}") from None
        place = self.path.resolve()
        return config.model_copy(update={"run": RunConfig(root=str(place.parent), sweep=place.name)})

    def finished(self, run: str) -> bool:
        """Whether the run's folder records that it has finished; false if it cannot be read, which the run itself reports."""
        try:
            return self.folder(run).state in FINISHED
        except UserError:
            return False

    def write(self, name: str, content: Any) -> None:
        """Replace the JSON file `name` in the sweep's folder `.sweep`, atomically and so that it survives a power failure."""
        with writing(self.home):
            write_file(self.path, f".sweep/{name}", json.dumps(content, indent=2) + "\n", durable=True)

    def log(self, event: str, runs: Iterable[str], **more: Any) -> None:
        """Append an event with the keys `more` for each of `runs` to ledger.jsonl. Only `planned` creates the folder."""
        assert event in EVENTS
        now = round(time.time(), 3)
        refuse_links(self.path, ".sweep/ledger.jsonl")
        with writing(self.home):
            if event == "planned":
                self.home.mkdir(parents=True, exist_ok=True)
            jsonl.append(self.home / "ledger.jsonl", ({"event": event, "run": run, "time": now, **more} for run in runs))

    def events(self) -> list[dict[str, Any]]:
        """All events of the sweep's runs, oldest first; damaged lines go to `damaged`. Raises Unavailable if unreadable."""
        path = self.home / "ledger.jsonl"
        try:
            lines = jsonl.read(path)
        except OSError as error:
            raise Unavailable(f"{path}: unreadable ({error.strerror}); make it readable, or move it away") from None
        self.damaged = []
        events = []
        for number, event in enumerate(lines, 1):
            if event is not None and is_event(event):
                events.append(event)
            else:
                self.damaged.append(f"{path}:{number}: not an event; left out, run folders and Slurm say what it said")
        return events

    def states(self) -> dict[str, RunState]:
        """State of each run, by its hash, according to the events in ledger.jsonl alone."""
        states: dict[str, RunState] = {}
        arms = functools.cache(self.arms)
        for event in self.events():
            run = event["run"]
            before = states.get(run)
            if before is None and event["event"] == "planned":
                before = RunState(event["arm"], event["seed"], event["steps"])
            if before := before or self._planned(run, arms):
                states[run] = before.after(event)
        return states

    def arms(self) -> dict[str, str]:
        """Arm of each run with a readable config, by the run's hash. Runs that differ only in their seed share an arm."""
        configs = {}
        for path in self.path.glob("*/config.json"):
            with suppress(UserError):
                configs[path.parent.name] = recorded(RunFolder(path.parent).read("config.json"))
        return {run: str(name) for run, name in arms(configs).items()}

    def _planned(self, run: str, arms: Callable[[], dict[str, str]]) -> RunState | None:
        """Rebuild a run's state from its folder, since its event `planned` is damaged; None if its config is unreadable."""
        try:
            config = self.config(run)
        except UserError:
            return None
        return RunState(arms()[run], config.seed, config.steps)

    def state_from_folder(self, run: str, state: RunState, error: str) -> RunState:
        """The state of a run whose process is gone: the final one in its folder, else `interrupted` with the given error."""
        try:
            status = self.folder(run).read("status.json")
        except UserError:
            status = {"state": "queued"}
        if status["state"] in ENDS:
            return state._replace(state=status["state"], error=status.get("error", ""))
        return state._replace(state="interrupted", error=error)


def is_claimed(folder: RunFolder) -> bool:
    """Whether a process holds the lock of the run's folder. The check creates no folder."""
    if not folder.path.exists():
        return False
    try:
        with folder.claim():
            return False
    except Unavailable:
        return True
