"""Events in the log of a sweep (ledger.jsonl), and the state of a run that they determine."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

EVENTS: dict[str, dict[str, type]] = {
    "planned": {"arm": str, "seed": int, "steps": int},
    "renamed": {"arm": str},
    "submitted": {"batch": str},
    "started": {"job": str, "step": int},
    "ended": {"state": str},
    "cancelled": {},
}
"""Required keys and types of each event in a sweep's log, besides `event`, `run` and `time`. A line without them is damaged.

planned: the run belongs to the sweep; arm is its name without the seed. renamed: the name has changed, since new runs of the
sweep differ in a further key. submitted: a launcher took up the run; batch names its file in .sweep/batches, and is empty for
the local launcher. started: its process began; step is that of its checkpoint. ended: its process ended; state is one of ENDS.
cancelled: the user cancelled the run.
"""
ENDS = {
    "done": "finished",
    "collapsed": "finished; a detector saw a collapse",
    "failed": "failed by itself; it would fail again",
    "interrupted": "ended by its surroundings (killed, a lost node, a full disk); the same command retries it",
    "preempted": "stopped by a signal, at a checkpoint if a step was done; its job or the same command resumes it",
}
PLAIN = re.compile(r"[\w\-][\w.\-]*", re.ASCII)
"""Pattern of valid names of runs and jobs: no path, and no hidden file."""
STUCK = 3
"""Number of starts of a run from one step after which it counts as failed, because it reaches no checkpoint in time."""


class RunState(NamedTuple):
    """The state of a run by the sweep's log. arm: its name without the seed. steps: number of RL steps of the whole run.

    state: queued, submitted, running, cancelled or one of ENDS; pending if Slurm says so. job: the run's present or last job.
    batch: name of the Slurm submission with the run, else empty. error: why the run waits or ended badly, else empty.
    step: step of its checkpoint at the last start. starts: number of consecutive starts from that step.
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

    def after(self, event: dict[str, Any]) -> RunState:
        """Return the state of the run after `event`, an entry of the sweep's log, has happened."""
        match event["event"]:
            case "planned":
                return self._replace(**{key: event[key] for key in EVENTS["planned"]})
            case "renamed":
                return self._replace(arm=event["arm"])
            case "submitted":
                return self._replace(state="submitted", batch=event["batch"], job="", error="", starts=0)
            case "started":
                starts = self.starts + 1 if event["step"] == self.step else 1
                state = "cancelled" if self.state == "cancelled" else "running"  # cancelled while its process was starting
                return self._replace(state=state, job=event["job"], step=event["step"], starts=starts, error="")
            case "ended" if not (self.state == "cancelled" and event["state"] in ("preempted", "interrupted")):
                return self._replace(state=event["state"], error=event.get("error", ""))
            case "cancelled":
                return self._replace(state="cancelled")
        return self


def is_event(line: dict[str, Any]) -> bool:
    """Whether a line of a sweep's log is an event with the required keys, their types, and names that are safe in paths."""
    keys = EVENTS.get(line["event"]) if isinstance(line.get("event"), str) else None
    if keys is None or not all(isinstance(line.get(key), kind) for key, kind in {"run": str, **keys}.items()):
        return False
    if not isinstance(line.get("error", ""), str):
        return False
    return all(isinstance(name, str) and PLAIN.fullmatch(name) for name in (line["run"], line.get("job") or "none"))
