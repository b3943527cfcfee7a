"""The run folder, torch-free: the record of a run, which W&B mirrors and `analysis` reads.

<root>/<sweep>/<hash>/config.json       the resolved config
                      provenance.json   of each process that worked on it: versions, commit, dirty diff, host
                      metrics.jsonl     one line a step, appended; after a resume the later line of a step counts
                      questions.jsonl   one line an evaluation, likewise: the mean reward of each prompt
                      events.jsonl      collapse, warning, learned, checkpoint, preempted, resumed with step and time
                      status.json       state, step, steps; replaced atomically
                      checkpoints/      see harness/run/checkpoint.py
                      dumps/            batches as parquet, see harness/dumps
                      log.txt           output of the process, when a launcher started it
                      wandb/            the mirror
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from harness.errors import Unavailable, UserError
from harness.files import open_own, to_disk, write_file, writing
from harness.run import jsonl
from harness.run.metrics import check_named

STATES = ("queued", "running", "preempted", "interrupted", "done", "collapsed", "failed")
"""interrupted: ended by its surroundings, as a full disk. failed: by itself, so that it would fail again."""
FINISHED = ("done", "collapsed")
CHECKPOINT = re.compile(r"step-(\d{8,10})", re.ASCII)
LAST_STEP = 10**9
"""Upper bound of `config.steps`."""


class RunFolder:
    """One run on disk. Reading needs no lock; `claim` keeps two writers apart."""

    def __init__(self, path: Path | str):
        self.path = Path(path)

    # --- writing -------------------------------------------------------------------------------------------------------

    @contextmanager
    def claim(self) -> Iterator[RunFolder]:
        """Hold the folder for writing. Raises Unavailable if another process does."""
        with ExitStack() as held:
            with writing(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
                lock = held.enter_context(open_own(self.path / ".lock", "a"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Unavailable(f"{self.path}: another process is running this very config; wait for it or stop it") from None
            except OSError as error:
                raise Unavailable(f"{self.path}: its file system has no locks ({error.strerror}; Lustre: -o flock)") from None
            yield self

    def write(self, name: str, content: Any) -> None:
        """Replace the JSON file `name` atomically: a reader or a crash sees the old or the new, never half."""
        with writing(self.path):
            write_file(self.path, name, json.dumps(content, indent=2, sort_keys=True) + "\n")

    def status(self, state: str, **more: Any) -> None:
        """Record the state of the run, one of STATES, with step and steps."""
        assert state in STATES
        self.write("status.json", {"state": state, "time": time.time(), **more})

    def progress(self) -> dict[str, int]:
        """step and steps as last recorded."""
        status = self.read("status.json")
        return {key: status[key] for key in ("step", "steps") if key in status}

    def log_metrics(self, step: int, metrics: dict[str, float]) -> None:
        """Append one step. Raises KeyError on a metric that `harness.run.metrics` does not have."""
        check_named(metrics)
        self._append("metrics.jsonl", {"step": step, **metrics})

    def log_questions(self, step: int, rewards: dict[str, list[float]]) -> None:
        """Append one evaluation: split/policy, as held_out/own or train/rollout -> mean reward of each prompt, in order."""
        self._append("questions.jsonl", {"step": step, **rewards})

    def log_event(self, kind: str, step: int, **more: Any) -> None:
        """Append one event."""
        self._append("events.jsonl", {"kind": kind, "step": step, "time": time.time(), **more})

    def _append(self, name: str, row: dict[str, Any]) -> None:
        with writing(self.path):
            jsonl.append(self.path / name, [row])

    def sync(self) -> None:
        """The rows of steps to the disk itself: a checkpoint that outlives a power failure must not be ahead of them."""
        for name in ("metrics.jsonl", "questions.jsonl", "events.jsonl"):
            if (self.path / name).exists():
                to_disk(self.path / name)

    # --- reading -------------------------------------------------------------------------------------------------------

    def read(self, name: str) -> dict[str, Any]:
        """The JSON object in the file `name`. Raises UserError if it is missing, Unavailable if it is unreadable."""
        path = self.path / name
        try:
            content = jsonl.loads(jsonl.content(path))
        except FileNotFoundError:
            raise UserError(f"{path}: missing; is {self.path} a run folder?") from None
        except (OSError, ValueError) as error:
            raise Unavailable(f"{path}: unreadable ({error}); delete this file: the run resumes from its checkpoints") from None
        if not isinstance(content, dict) or (name == "status.json" and content.get("state") not in STATES):
            raise Unavailable(f"{path}: not what a run writes there; delete this file: the run resumes from its checkpoints")
        return content

    @property
    def state(self) -> str:
        """One of STATES; `queued` when the run has not started."""
        return self.read("status.json")["state"] if (self.path / "status.json").exists() else "queued"

    @property
    def checkpoints(self) -> dict[int, Path]:
        """Step -> folder of each checkpoint that it keeps, the oldest first. A copy under another name is none."""
        matches = {CHECKPOINT.fullmatch(path.name): path for path in (self.path / "checkpoints").glob("step-*")}
        return dict(sorted((int(match[1]), path) for match, path in matches.items() if match))

    @property
    def checkpointed(self) -> int:
        """The step of the newest checkpoint, from which the run would go on; 0 without one."""
        return max(self.checkpoints, default=0)

    def metrics(self) -> list[dict[str, float]]:
        """One row a step, in order, with its `step`. Of a step recorded twice (a resume) the later row counts."""
        return self._last_rows("metrics.jsonl")

    def questions(self) -> list[dict[str, Any]]:
        """One row an evaluation, in order, as `log_questions` wrote it with its `step`. Each step stands once, as in `metrics`.

        Two runs with one warm start and evaluation.prompts have the same prompts in the same places, so they pair.
        """
        return self._last_rows("questions.jsonl")

    def _last_rows(self, name: str) -> list[dict[str, Any]]:
        rows = {row["step"]: row for row in self._rows(name) if type(row["step"]) is int}
        return [rows[step] for step in sorted(rows)]

    def missing_rows(self, step: int) -> int:
        """How many of the steps before `step` have no row. A branch has rows from the step on at which it began."""
        first = next((event["step"] for event in self.events() if event.get("kind") == "branched"), 0)
        return len(set(range(first, step)) - {row["step"] for row in self.metrics()})

    def events(self) -> list[dict[str, Any]]:
        """All events in the order they were written."""
        return list(self._rows("events.jsonl"))

    def _rows(self, name: str) -> Iterator[dict[str, Any]]:
        """Lines that are no row of a step are left out: a kill cut them short, and the resume has written the step again."""
        try:
            rows = [row for _, row in jsonl.read(self.path / name)]
        except OSError as error:
            raise Unavailable(f"{self.path / name}: unreadable ({error.strerror})") from None
        return (row for row in rows if row is not None and _is_step(row.get("step")))


class ReadOnlyRunFolder(RunFolder):
    """The folder as the ranks above 0 have it: they read it, and rank 0 alone claims and writes it."""

    @contextmanager
    def claim(self) -> Iterator[RunFolder]:
        yield self

    def write(self, name: str, content: Any) -> None:
        pass

    def _append(self, name: str, row: dict[str, Any]) -> None:
        pass


def _is_step(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LAST_STEP


def changes(diff: str | None) -> str:
    """A short hash of uncommitted changes, by which two runs can be compared; "" without changes."""
    return hashlib.sha256(diff.encode()).hexdigest()[:6] if diff else ""


def run_folders(sweep: Path | str) -> list[RunFolder]:
    """The run folders of a sweep, in the order of their names. Raises UserError if it has none."""
    sweep = Path(sweep)
    folders = sorted(path.parent for path in sweep.glob("*/config.json"))
    if not sweep.exists():
        raise UserError(f"{sweep}: no such folder")
    if not folders:
        hint = "it is one itself, give the folder above" if (sweep / "config.json").exists() else "give the folder of a sweep"
        raise UserError(f"{sweep}: no run folder in it; {hint}, as runs/demo")
    return [RunFolder(path) for path in folders]
