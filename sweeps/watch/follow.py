"""Incremental reading of a running sweep: each reading takes only newly appended lines. No file is locked or written."""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from analysis.labels import coarseness
from analysis.marks import Marks, Styled, marks
from analysis.records import Status, checked
from analysis.sources import is_control, source_of
from harness.arms import Arm, arms
from harness.config import recorded
from harness.errors import UserError, first_line
from harness.run.folder import FINISHED, LAST_STEP, RunFolder
from harness.run.jsonl import loads
from sweeps.states import RunState, is_event

BUDGET = 64 << 20
"""Maximum bytes of all runs' metrics.jsonl that one reading of a sweep takes, so that it is quick even for thousands of runs."""
TIME, NUMBER = b'"time/step": ', re.compile(rb"\d+(\.\d+)?([eE][-+]?\d+)?")
"""Key of a step's duration in a line of metrics.jsonl, and the pattern of the number after it. Parsing all lines as JSON would
take ten times as long, so only those with an evaluation are parsed."""
LONGEST = 1 << 20
"""Maximum number of bytes in a line that is read. No run writes a longer line."""
MOST = 400
"""Maximum number of points kept of a run's curve. When a curve exceeds it, every second point is dropped."""
ALARMS = ("collapse", "warning", "all_rejected")
"""Kinds of a run's events that are shown as alarms."""
LOST = ("failed", "interrupted", "cancelled")
"""States that a run takes from the sweep's log if its process died before it could write them to the run's folder."""


class Evaluated(NamedTuple):
    """A point of a run's curves: step, held-out reward, and K3 of the rollouts at that step (None after the last step)."""

    step: int
    reward: float
    k3: float | None


class Alarm(NamedTuple):
    """A collapse or warning that `detector` reported at `step`, with its onset; or a step with all tokens rejected."""

    time: float
    step: int
    kind: str
    detector: str
    onset: int | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        """Key, equal for two records of one alarm: (kind, detector, −1), or (kind, "", step) if no detector reported it."""
        return self.kind, self.detector, -1 if self.detector else self.step

    def __str__(self) -> str:
        by = f" by {self.detector}" if self.detector else ""
        return f"{self.kind}{by} at step {self.step}" + ("" if self.onset is None else f", onset {self.onset}")


class Tail:
    """Reader of a growing file: each call of `lines` returns only lines that earlier calls did not."""

    def __init__(self, path: str):
        self.path, self.offset, self.node = path, 0, 0

    def lines(self, most: int) -> tuple[list[bytes], bool]:
        """Return (about `most` bytes of whole new lines, whether more wait). A replaced file is read from its start."""
        found = regular(self.path)
        if found is None:
            return [], False
        if found.st_ino != self.node or found.st_size < self.offset:
            self.node, self.offset = found.st_ino, 0
        if found.st_size == self.offset:
            return [], False
        if most <= 0:
            return [], True
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                content = file.read(max(most, LONGEST))
        except OSError:
            return [], False
        whole = content.rfind(b"\n") + 1  # a line that is being written waits for its end
        if not whole and len(content) >= LONGEST:
            whole = len(content)  # no line of a run: it is passed over in pieces
        self.offset += whole
        return content[:whole].splitlines(), self.offset + (len(content) - whole) < found.st_size


@dataclass
class Followed:
    """A run of a watched sweep. timed: number of steps with a known duration. spent: seconds that all but the first took.

    alarms: by `Alarm.key`, since a resumed run may record an alarm again. time: seconds since the epoch of its last status.
    changed: number of the last reading of the sweep (`Follower.look`) in which the run had changed. over: whether nothing is
    left to read.
    """

    name: str
    config: dict[str, Any] | None
    rows: Tail
    events: Tail
    arm: str = "?"
    state: str = "queued"
    step: int = 0
    time: float = 0.0
    error: str = ""
    timed: int = 0
    spent: float = 0.0
    points: list[Evaluated] = field(default_factory=list)
    alarms: dict[tuple[str, str, int], Alarm] = field(default_factory=dict)
    changed: int = 0
    over: bool = False
    signature: tuple[int, ...] = ()

    @property
    def seed(self) -> int | None:
        return self.config["seed"] if self.config else None

    @property
    def seconds(self) -> float | None:
        """Mean seconds per step after the first, with the time of evaluations. None before two steps."""
        return self.spent / (self.timed - 1) if self.timed > 1 else None

    @property
    def steps(self) -> int:
        """Number of steps of the whole run; 0 if its config is unreadable."""
        return self.config["steps"] if self.config else 0

    @property
    def left(self) -> int:
        """Number of RL steps that the run still has to do; 0 once it has ended."""
        return 0 if self.state in (*FINISHED, *LOST, "unreadable") else max(0, self.steps - self.step)


class Follower:
    """Reader of the runs of one sweep under way. Each call of `look` reads what was written since the last call.

    marks: colours and markers by arm (runs alike but for the seed), as in reports. look_number: number of calls so far. renewed:
    number of the last call that found new or missing runs. behind: number of runs whose metrics are not fully read.
    """

    def __init__(self, path: Path):
        """Start to follow the sweep in the folder `path`. Raises UserError if there is no such folder."""
        if not path.is_dir():
            raise UserError(f"{path}: no such folder; give the folder of a sweep, as runs/demo")
        if (path / "config.json").exists():
            raise UserError(f"{path}: a run, not a sweep; give the folder above it")
        self.path, self.runs, self.names = path, dict[str, Followed](), dict[str, Arm]()
        self.marks: Marks = marks([])
        self.ledger, self.ledger_states = Tail(str(path / ".sweep" / "ledger.jsonl")), dict[str, RunState]()
        self.ended_at: dict[str, float] = {}
        self.look_number = self.renewed = self.behind = 0

    @property
    def arms(self) -> list[str]:
        """Names of the sweep's arms (runs alike but for the seed), with the finest rollout precision first."""
        by_name = {str(arm): arm for arm in self.names.values()}
        return sorted(by_name, key=lambda name: (coarseness(by_name[name].precision), name))

    def look(self) -> None:
        """Read what was written to the sweep's folder since the last call, but at most `BUDGET` bytes of metrics."""
        self.look_number += 1
        self._find_runs()
        self._read_ledger()
        budget, self.behind = BUDGET, 0
        for run in self.runs.values():
            if run.over:
                continue
            self._read_status(run)
            self._read_events(run)
            lines, waiting = run.rows.lines(budget)
            budget -= sum(map(len, lines))
            self._take_rows(run, lines)
            self.behind += waiting
            run.over = run.state in FINISHED and not waiting
            self._apply_ledger(run)

    # --- parts of a look -----------------------------------------------------------------------------------------------

    def _find_runs(self) -> None:
        present = set()
        with suppress(FileNotFoundError), os.scandir(self.path) as entries:  # a sweep that was removed has no runs
            present = {entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)}
        gone = self.runs.keys() - present
        for name in gone:
            del self.runs[name]
            self.names.pop(name, None)
        new = [name for name in sorted(present - self.runs.keys()) if regular(f"{self.path}/{name}/config.json")]
        for name in new:
            self.runs[name] = self._begin(name)
        if new or gone:
            configs = {name: run.config for name, run in self.runs.items() if run.config is not None}
            self.names, looks = arms(configs), []
            for name, arm in self.names.items():
                self.runs[name].arm, config = str(arm), configs[name]
                looks.append(Styled(str(arm), arm.precision, source_of(config), arm.correction, is_control(config, arm)))
            self.marks = marks(looks)
            self.renewed = self.look_number

    def _begin(self, name: str) -> Followed:
        folder = self.path / name
        run = Followed(name, None, Tail(f"{folder}/metrics.jsonl"), Tail(f"{folder}/events.jsonl"), changed=self.look_number)
        try:
            run.config = recorded(RunFolder(folder).read("config.json"))
        except (UserError, RecursionError) as error:
            run.state, run.error, run.over = "unreadable", f"config.json: {first_line(error)}", True
        return run

    def _read_status(self, run: Followed) -> None:
        found = regular(f"{self.path}/{run.name}/status.json")
        signature = (found.st_ino, found.st_size, found.st_mtime_ns) if found else ()
        if signature == run.signature or found is None:
            return
        run.signature, run.changed = signature, self.look_number
        damage: list[str] = []
        try:
            values = RunFolder(self.path / run.name).read("status.json")
        except UserError as error:
            values, damage = {}, [first_line(error)]
        status = checked(Status, values, "status.json", damage)
        if damage or status is None:
            run.state, run.error = "unreadable", damage[0]
            return
        run.state, run.error, run.step = status.state, status.error, status.step
        run.time = _finite(values.get("time")) or found.st_mtime

    def _read_events(self, run: Followed) -> None:
        for event in _objects(run.events.lines(BUDGET)[0]):
            step, kind = event.get("step"), event.get("kind")
            if kind in ALARMS and type(step) is int and 0 <= step <= LAST_STEP:
                detector, onset = event.get("detector", ""), event.get("onset")
                onset = onset if type(onset) is int and 0 <= onset <= step else None
                alarm = Alarm(_finite(event.get("time")) or 0.0, step, str(kind), str(detector), onset)
                run.alarms.setdefault(alarm.key, alarm)
                run.changed = self.look_number

    def _take_rows(self, run: Followed, lines: list[bytes]) -> None:
        """Add durations and evaluations from new lines of metrics.jsonl. An evaluation replaces those of its step and later."""
        for line in lines:
            place = line.rfind(TIME)
            number = NUMBER.match(line, place + len(TIME)) if place >= 0 else None
            if number and math.isfinite(seconds := float(number[0])):
                run.spent += seconds if run.timed else 0.0
                run.timed += 1
        evaluations = [line for line in lines if b'"eval/reward"' in line]  # the others would be parsed for nothing
        for row in _objects(evaluations):
            step, reward = row.get("step"), _finite(row.get("eval/reward"))
            if type(step) is not int or not 0 <= step <= LAST_STEP or reward is None:
                continue
            while run.points and run.points[-1].step >= step:
                run.points.pop()
            run.points.append(Evaluated(step, reward, _finite(row.get("rollout_corr/k3_kl"))))
            if len(run.points) > MOST:
                run.points = run.points[::2]
            run.changed = self.look_number

    def _read_ledger(self) -> None:
        for event in _objects(self.ledger.lines(BUDGET)[0]):
            if is_event(event):
                name = event["run"]
                self.ledger_states[name] = self.ledger_states.get(name, RunState("", 0, 0)).after(event)
                self.ended_at[name] = _finite(event.get("time")) or 0.0

    def _apply_ledger(self, run: Followed) -> None:
        """Take an unfinished run's state from the sweep's log if it is one of `LOST` and not older than its folder's state."""
        known = self.ledger_states.get(run.name)
        if known and known.state in LOST and run.state not in FINISHED and self.ended_at[run.name] >= run.time:
            if (known.state, known.error) != (run.state, run.error):
                run.changed = self.look_number
            run.state, run.error = known.state, known.error or run.error


def regular(path: str) -> os.stat_result | None:
    """File status of a regular file. None for any other kind, such as a pipe, which would block a reader."""
    with suppress(OSError, ValueError):
        found = os.stat(path)
        if stat.S_ISREG(found.st_mode):
            return found
    return None


def _objects(lines: list[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        with suppress(ValueError):
            value = loads(line)
            if isinstance(value, dict):
                yield value


def _finite(value: Any) -> float | None:
    """The value if it is a finite number, which can be drawn, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    with suppress(OverflowError):
        return float(value) if math.isfinite(value) else None
    return None
