"""Types and checks of a run's record, which may be untrusted. A value that no run writes is reported as damage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator

from harness.config import explain
from harness.run.folder import LAST_STEP, STATES

Text = Annotated[str, AfterValidator(lambda text: text.encode().decode())]  # not half a surrogate pair
Step = Annotated[int, Field(strict=True, ge=0, le=LAST_STEP)]


class _Recorded(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class Status(_Recorded):
    """Progress of a run. error: the reason why it ended early."""

    state: Literal[STATES] = "queued"  # type: ignore[valid-type]  # a tuple
    step: Step = 0
    error: Text = ""


class Event(_Recorded):
    """An event that a collapse detector reported. onset: the RL step at which the event began."""

    detector: Text
    onset: Step


class Process(_Recorded):
    """A process that computed a part of a run: the version of its code, its packages and its machine."""

    commit: Text | None
    diff: Text | None
    host: Text
    device: Text
    platform: Text
    packages: dict[Text, Text | None]

    @field_validator("packages")
    @classmethod
    def _torch(cls, packages: dict[str, str | None]) -> dict[str, str | None]:
        if "torch" not in packages:
            raise ValueError("torch: missing")
        return packages


Kind = TypeVar("Kind", bound=_Recorded)


def checked(kind: type[Kind], values: Any, origin: str, damage: list[str]) -> Kind | None:
    """`values` validated as the type `kind`. If they are invalid: None, and `damage` gets the reason, prefixed by `origin`."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        damage.append(f"{origin}: {explain(dict(error.errors()[0]))}; left out")
        return None


def onsets(events: Iterable[Mapping[str, Any]], config: Mapping[str, Any], origin: str, damage: list[str]) -> dict[str, int]:
    """Onset of each detector's first event, by detector. Invalid events, and those of a detector not in `config`, are left out
    and named in `damage`."""
    first: dict[str, int] = {}
    for values in events:
        event = checked(Event, values, origin, damage)
        if event and event.detector not in config["collapse"]["detectors"]:
            damage.append(f"{origin}: detector {event.detector!r} is not one of the run's; left out")
        elif event:
            first.setdefault(event.detector, event.onset)
    return first


def processes(values: Any, origin: str, damage: list[str]) -> list[Process]:
    """The processes that computed a run, from the list in its record. Invalid entries are left out and named in `damage`."""
    listed = values if isinstance(values, list) else []
    return [process for value in listed if (process := checked(Process, value, origin, damage))]
