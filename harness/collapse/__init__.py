"""Collapse as an event: the detectors, and the outcome that follows from their events. Torch-free.

A run feeds its detectors row by row as it goes. `detect` feeds them the rows of a finished run, and gives the same events.
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
        "learning": "harness.collapse.detectors:Learning",
    },
)

CAUSE_WINDOW = 50
"""Steps before a collapse in which a warning counts as its cause."""


Event = dict[str, Any]
"""A detector's report: {"onset": step, ...} in plain JSON."""


class Detector(Protocol):
    """Watches the metrics of a run for one kind of event.

    role: "collapse", the event that ends a run's health; "warning", a predictor of one; "learned".
    state: everything that the detector remembers, in plain JSON for a checkpoint; it may be replaced by an earlier one.
    """

    role: str
    state: dict[str, Any]

    def observe(self, step: int, metrics: dict[str, float]) -> Event | None:
        """The event if this step completes one, else None. Called once a step, in order, and no more after an event."""


class Detectors:
    """The detectors of a run by name: each is fed every row until it has reported."""

    def __init__(self, detectors: Mapping[str, Detector]):
        self.detectors = detectors
        self.events: dict[str, Event] = {}
        """The event of each detector that has reported one."""

    def observe(self, step: int, metrics: dict[str, float]) -> dict[str, Event]:
        """Feed a row. The events that it completes, by detector."""
        watching = {name: detector for name, detector in self.detectors.items() if name not in self.events}
        completed = {name: event for name, detector in watching.items() if (event := detector.observe(step, metrics))}
        self.events |= completed
        return completed

    def role(self, name: str) -> str:
        """The role of a detector."""
        return self.detectors[name].role

    @property
    def collapsed(self) -> bool:
        """Whether a detector of collapse has reported."""
        return any(self.role(name) == "collapse" for name in self.events)

    def outcome(self) -> Outcome:
        """The outcome of the run, had it ended here."""
        return outcome({name: event["onset"] for name, event in self.events.items()}, self.detectors)

    def state(self) -> dict[str, Any]:
        """The part of a checkpoint that is theirs: the events, and what each detector remembers."""
        return {"events": self.events, "detectors": {name: detector.state for name, detector in self.detectors.items()}}

    def restore(self, events: Mapping[str, Event], states: Mapping[str, dict[str, Any]]) -> None:
        """Go on from what `state` gave."""
        self.events = dict(events)
        for name, detector in self.detectors.items():
            detector.state = states[name]


class Outcome(NamedTuple):
    """kind: collapsed, never learned or survived. onset, detector: of a collapse. cause: a warning just before it."""

    kind: str
    onset: int | None = None
    detector: str | None = None
    cause: str | None = None

    def present(self) -> dict[str, Any]:
        """The fields that this outcome has."""
        return {key: value for key, value in self._asdict().items() if value is not None}


def detect(rows: Iterable[dict[str, float]], settings: dict[str, dict[str, Any]]) -> dict[str, Event]:
    """The events, by detector, of a run with these rows, each with its "step". settings: parameters by detector.

    Raises ValueError naming a parameter that is not of its type.
    """
    for name, parameters in settings.items():
        check(f"collapse.detectors.{name}", DETECTORS[name], parameters)
    detectors = Detectors({name: DETECTORS[name](**parameters) for name, parameters in settings.items()})
    for row in rows:
        detectors.observe(int(row["step"]), row)
    return detectors.events


def outcome(onsets: dict[str, int], watched: Iterable[str]) -> Outcome:
    """The outcome of a finished run: its earliest collapse with the cause, else whether it learned.

    onsets: by detector. watched: the detectors of the run. The cause is the earliest warning or numerical failure in the
    CAUSE_WINDOW steps up to the onset. A run never learned if a detector of learning watched it and reported nothing.
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
