"""Collapse as an event: the detectors, and the outcome that follows from their events. Torch-free.

A detector sees every recorded step once, in order, and reports an event at most once. Its state is plain JSON, so that it
goes into a checkpoint. A run feeds its detectors as it goes. `replay` feeds them the rows of a finished run: the events are the
same.
"""

from __future__ import annotations

from collections.abc import Iterable
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
"""A warning up to so many steps before a collapse counts as its cause."""


class Detector(Protocol):
    """Watches the metrics of a run for one kind of event.

    role: "collapse", the event that ends a run's health; "warning", a predictor of one; "learned".
    state: everything that the detector remembers; it may be replaced by an earlier one.
    """

    role: str
    state: dict[str, Any]

    def observe(self, step: int, metrics: dict[str, float]) -> dict[str, Any] | None:
        """The event {"onset": step, ...} if this step completes one, else None."""


class Outcome(NamedTuple):
    """kind: collapsed, never learned or survived. onset, detector: of a collapse. cause: a warning just before it."""

    kind: str
    onset: int | None = None
    detector: str | None = None
    cause: str | None = None

    def present(self) -> dict[str, Any]:
        """The fields that this outcome has."""
        return {key: value for key, value in self._asdict().items() if value is not None}


def replay(rows: Iterable[dict[str, float]], settings: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The events, by detector, of a run with these rows, each with its "step". settings: parameters by detector.

    Raises ValueError naming a parameter that is not of its type.
    """
    for name, parameters in settings.items():
        check(f"collapse.detectors.{name}", DETECTORS[name], parameters)
    detectors = {name: DETECTORS[name](**parameters) for name, parameters in settings.items()}
    events: dict[str, dict[str, Any]] = {}
    for row in rows:
        for name, detector in detectors.items():
            event = detector.observe(row["step"], row)
            if event:
                events[name] = event
    return events


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
