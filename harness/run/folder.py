"""The run folder, torch-free: the record of a run, which W&B mirrors and `analysis` reads.

<root>/<sweep>/<hash>/config.json       the resolved config
                      provenance.json   of each process of the run: versions, commit, uncommitted diff, host
                      metrics.jsonl     one line per step; of two for one step (after a resume) the later counts
                      questions.jsonl   one line per evaluation: mean reward of each prompt; of two for one step the later counts
                      events.jsonl      one line per event, with step and time: a collapse, a warning, a checkpoint ...
                      status.json       state, step reached and number of steps of the run; replaced atomically
                      checkpoints/      see harness/run/checkpoint.py
                      dumps/            batches as parquet, see harness/dumps
                      log.txt           output of the process, when a launcher started it
                      wandb/            files of the W&B mirror
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
from harness.files import open_own, refuse_links, to_disk, write_file, writing
from harness.run import jsonl
from harness.run.metrics import check_named

STATES = ("queued", "running", "preempted", "interrupted", "done", "collapsed", "failed")
"""States of a run. interrupted: ended by its environment, such as a full disk. failed: ended by an error that would recur."""
FINISHED = ("done", "collapsed")
CHECKPOINT = re.compile(r"step-(\d{8,10})", re.ASCII)
LAST_STEP = 10**9
"""Maximum number of RL steps that a config may ask for."""


class RunFolder:
    """The folder of one run. Reading needs no lock; `claim` ensures a single writer."""

    def __init__(self, path: Path | str):
        self.path = Path(path)

    # --- writing -------------------------------------------------------------------------------------------------------

    @contextmanager
    def claim(self) -> Iterator[RunFolder]:
        """Lock the run folder for writing. Raises Unavailable if another process holds it, UserError if the folder is a link."""
        refuse_links(self.path.parent, f"{self.path.name}/.lock")
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

    def write(self, name: str, content: Any, *, durable: bool = True) -> None:
        """Replace the JSON file `name` atomically. durable: return only when a power failure can no longer undo this."""
        with writing(self.path):
            write_file(self.path, name, json.dumps(content, indent=2, sort_keys=True) + "\n", durable=durable)

    def status(self, state: str, **more: Any) -> None:
        """Record the run's state, one of STATES, and fields such as `step`. States but `running` survive a power failure."""
        assert state in STATES
        if state in FINISHED:
            self.sync()
        self.write("status.json", {"state": state, "time": time.time(), **more}, durable=state != "running")

    def progress(self) -> dict[str, int]:
        """The last recorded `step` and number of `steps`; a number that was not recorded is absent."""
        status = self.read("status.json")
        return {key: status[key] for key in ("step", "steps") if key in status}

    def log_metrics(self, step: int, metrics: dict[str, float]) -> None:
        """Append a step's metrics to metrics.jsonl. Raises KeyError on a metric that `harness.run.metrics` does not list."""
        check_named(metrics)
        self._append("metrics.jsonl", {"step": step, **metrics})

    def log_questions(self, step: int, rewards: dict[str, list[float]]) -> None:
        """Append an evaluation to questions.jsonl. rewards: each prompt's mean reward, by "split/policy", as "held_out/own"."""
        self._append("questions.jsonl", {"step": step, **rewards})

    def log_event(self, kind: str, step: int, **more: Any) -> None:
        """Append one event of the run to events.jsonl, with its step and the time. more: further fields."""
        self._append("events.jsonl", {"kind": kind, "step": step, "time": time.time(), **more})

    def _append(self, name: str, row: dict[str, Any]) -> None:
        with writing(self.path):
            jsonl.append(self.path / name, [row])

    def sync(self) -> None:
        """Flush metrics, rewards and events to the disk, so that after a power failure no checkpoint is newer than they are."""
        for name in ("metrics.jsonl", "questions.jsonl", "events.jsonl"):
            if (self.path / name).exists():
                to_disk(self.path / name)
        for folder in (self.path, self.path.parent):
            to_disk(folder)

    # --- reading -------------------------------------------------------------------------------------------------------

    def read(self, name: str) -> dict[str, Any]:
        """The JSON object in the file `name`. Raises UserError if the file is missing, Unavailable if it cannot be read."""
        path = self.path / name
        try:
            content = jsonl.load(path)
        except FileNotFoundError:
            raise UserError(f"{path}: missing; is {self.path} a run folder?") from None
        except (OSError, ValueError) as error:
            raise Unavailable(f"{path}: unreadable ({error}); delete this file: the run resumes from its checkpoints") from None
        if not isinstance(content, dict) or (name == "status.json" and content.get("state") not in STATES):
            raise Unavailable(f"{path}: not what a run writes there; delete this file: the run resumes from its checkpoints")
        return content

    @property
    def state(self) -> str:
        """State of the run, one of STATES; `queued` if it has not started, or if a power failure emptied its status."""
        status = self.path / "status.json"
        empty = status.is_file() and not status.stat().st_size
        return self.read("status.json")["state"] if status.exists() and not empty else "queued"

    @property
    def checkpoints(self) -> dict[int, Path]:
        """Folders of the checkpoints in the run folder, by step, oldest first. Copies under other names are ignored."""
        matches = {CHECKPOINT.fullmatch(path.name): path for path in (self.path / "checkpoints").glob("step-*")}
        return dict(sorted((int(match[1]), path) for match, path in matches.items() if match))

    @property
    def checkpointed(self) -> int:
        """Step of the newest checkpoint, from which the run would resume; 0 if there is none."""
        return max(self.checkpoints, default=0)

    def metrics(self) -> list[dict[str, float]]:
        """Metrics of each step, in order, each with its `step`. If a step was recorded twice, the later record counts."""
        return self._last_rows("metrics.jsonl")

    def questions(self) -> list[dict[str, Any]]:
        """Rewards per prompt of each evaluation, in order. If a step was evaluated twice, the later record counts.

        Runs with the same warm start and the same evaluation.prompts have the same prompts in the same positions, so their
        rewards can be paired.
        """
        return self._last_rows("questions.jsonl")

    def _last_rows(self, name: str) -> list[dict[str, Any]]:
        rows = {row["step"]: row for row in self._rows(name) if type(row["step"]) is int}
        return [rows[step] for step in sorted(rows)]

    def missing_rows(self, step: int) -> int:
        """Number of steps before `step` whose metrics are missing. In a branched run, steps before the branch do not count."""
        first = next((event["step"] for event in self.events() if event.get("kind") == "branched"), 0)
        return len(set(range(first, step)) - {row["step"] for row in self.metrics()})

    def events(self) -> list[dict[str, Any]]:
        """All events of the run, in the order in which they were written."""
        return list(self._rows("events.jsonl"))

    def _rows(self, name: str) -> Iterator[dict[str, Any]]:
        """JSON objects of a file's lines. Lines without a `step` from 0 to LAST_STEP are skipped, and so are lines that a kill
        cut short, because the resumed run repeated their steps."""
        try:
            rows = jsonl.read(self.path / name)
        except OSError as error:
            raise Unavailable(f"{self.path / name}: unreadable ({error.strerror})") from None
        stepped = (row for row in rows if row is not None and type(row.get("step")) is int)
        return (row for row in stepped if 0 <= row["step"] <= LAST_STEP)


class ReadOnlyRunFolder(RunFolder):
    """A run folder for ranks above 0, whose writes do nothing. Rank 0 alone claims and writes the folder."""

    @contextmanager
    def claim(self) -> Iterator[RunFolder]:
        yield self

    def write(self, name: str, content: Any, *, durable: bool = True) -> None:
        pass

    def sync(self) -> None:
        pass

    def _append(self, name: str, row: dict[str, Any]) -> None:
        pass


def changes(diff: str | None) -> str:
    """Short hash of uncommitted changes, for comparing the code of two runs; "" if there are none."""
    return hashlib.sha256(diff.encode()).hexdigest()[:6] if diff else ""


def run_folders(sweep: Path | str) -> list[RunFolder]:
    """All run folders of a sweep, ordered by name. Raises UserError if there is none."""
    sweep = Path(sweep)
    folders = sorted(path.parent for path in sweep.glob("*/config.json"))
    if not sweep.exists():
        raise UserError(f"{sweep}: no such folder")
    if not folders:
        hint = "it is one itself, give the folder above" if (sweep / "config.json").exists() else "give the folder of a sweep"
        raise UserError(f"{sweep}: no run folder in it; {hint}, as runs/demo")
    return [RunFolder(path) for path in folders]
