"""Collapse detection: detectors that report events, and the outcome of a run that follows from these events. Torch-free.

A run feeds its detectors one row of metrics per step. `detect` feeds them the rows of a finished run and gives the same events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from algos.parameters import check
from algos.registry import Registry

DETECTORS = Registry(
    "detectors",
    {
        "drawdown": "harness.collapse.detectors:Drawdown",
        "numerical": "harness.collapse.detectors:Numerical",
        "distribution": "harness.collapse.detectors:Distribution",
        "entropy": "harness.collapse.detectors:Entropy",
        "length": "harness.collapse.detectors:Length",
        "weights": "harness.collapse.detectors:Weights",
        "diagnosis": "harness.collapse.detectors:FaultAlarm",
        "learning": "harness.collapse.detectors:Learning",
    },
)

CAUSE_WINDOW = 50
"""Number of steps before a collapse within which a warning counts as its cause."""


Event = dict[str, Any]
"""Event that a detector reports, in plain JSON: "onset", the step at which the event begins, and further fields."""


class Detector(Protocol):
    """Interface of a detector, which watches the metrics of a run for one kind of event.

    role: "collapse" for the end of a healthy run, "warning" for a sign that precedes one, "learned" for proof of learning.
    state: all that the detector remembers, as plain JSON for a checkpoint. Resuming replaces it by a saved state.
    """

    role: str
    state: dict[str, Any]

    def observe(self, step: int, metrics: dict[str, float]) -> Event | None:
        """Return the event that `step` completes, or None. Called once per step, in order, until it returns an event."""


class Detectors:
    """All detectors of a run, by name. Each is fed every row of metrics until it has reported an event."""

    def __init__(self, detectors: Mapping[str, Detector]):
        self.detectors = detectors
        self.events: dict[str, Event] = {}
        """Events reported so far, by the name of the detector."""

    def observe(self, step: int, metrics: dict[str, float]) -> dict[str, Event]:
        """Feed a step's metrics to all detectors without an event so far. Returns the events of the step, by detector."""
        completed = {}
        for name, detector in self.detectors.items():
            if name not in self.events and (event := detector.observe(step, metrics)):
                completed[name] = event
        self.events |= completed
        return completed

    def role(self, name: str) -> str:
        """The role of the detector `name`: "collapse", "warning" or "learned"."""
        return self.detectors[name].role

    @property
    def collapsed(self) -> bool:
        """Whether any detector with the role "collapse" has reported an event."""
        return any(self.role(name) == "collapse" for name in self.events)

    def outcome(self) -> Outcome:
        """Outcome of the run if it ended now: collapsed, never learned or survived, by the events reported so far."""
        return outcome({name: event["onset"] for name, event in self.events.items()}, self.detectors)

    def state(self) -> dict[str, Any]:
        """State of the collapse detectors for a checkpoint: their events so far, and what each of them remembers."""
        return {"events": self.events, "detectors": {name: detector.state for name, detector in self.detectors.items()}}

    def restore(self, events: Mapping[str, Event], states: Mapping[str, dict[str, Any]]) -> None:
        """Restore the events and the states of the detectors from a checkpoint, as `state` returned them."""
        self.events = dict(events)
        for name, detector in self.detectors.items():
            detector.state = states[name]


class Outcome(NamedTuple):
    """Outcome of a run: collapsed, never learned or survived. For a collapse: its onset (a step), its detector and its cause."""

    kind: str
    onset: int | None = None
    detector: str | None = None
    cause: str | None = None

    def present(self) -> dict[str, Any]:
        """The fields of a run's outcome (such as onset and cause of a collapse) that are not None."""
        return {key: value for key, value in self._asdict().items() if value is not None}


def detect(rows: Iterable[dict[str, float]], settings: dict[str, dict[str, Any]]) -> dict[str, Event]:
    """Return the events of a finished run, by detector. rows: metrics, each with its "step". settings: detector -> parameters."""
    for name, parameters in settings.items():
        check(f"collapse.detectors.{name}", DETECTORS[name], parameters)
    detectors = Detectors({name: DETECTORS[name](**parameters) for name, parameters in settings.items()})
    for row in rows:
        detectors.observe(int(row["step"]), row)
    return detectors.events


def outcome(onsets: dict[str, int], watched: Iterable[str]) -> Outcome:
    """Return the outcome of a finished run: its earliest collapse and the collapse's cause, else whether the run learned.

    onsets: detector -> onset of its event, a step. watched: names of the run's detectors. The cause is the earliest warning or
    numerical failure in the CAUSE_WINDOW steps up to the onset, or None. Without a collapse, a run never learned if detectors
    of learning watched it and none reported an event.
    """
    role = {name: DETECTORS[name].role for name in {*onsets, *watched}}
    fatal = {name: step for name, step in onsets.items() if role[name] == "collapse"}
    if not fatal:
        learned = any(role[name] == "learned" for name in onsets) or "learned" not in role.values()
        return Outcome("survived" if learned else "never learned")
    detector = min(fatal, key=fatal.__getitem__)
    onset = fatal[detector]
    causes = {name: step for name, step in onsets.items() if role[name] != "learned" and name != "drawdown"}
    near = {name: step for name, step in causes.items() if onset - CAUSE_WINDOW <= step <= onset}
    return Outcome("collapsed", onset, detector, min(near, key=near.__getitem__) if near else None)
