"""Requirements of an accepted config: its fields accept each value, and reading it again gives the same config."""

from __future__ import annotations

import dataclasses
import json
import math
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import Interval
from pydantic import BaseModel

from algos.corrections.spec import Plugin
from algos.parameters import LARGE, Infinite, accepts, bounds, describe, types_of
from algos.registry import ADVANTAGES, CORRECTIONS, LOSSES
from harness.collapse import DETECTORS
from harness.config import Config, parse_recorded
from harness.errors import UserError
from harness.rollouts import ENGINES

HANG = 100
"""CPU seconds after which a case counts as hung, so that other processes do not count. pytest ends a case that only waits."""
BOUND = Annotated[float, Interval(ge=-LARGE, le=LARGE)] | None
"""A bound of a correction: `algos.corrections.spec` checks the rest, which depends on the other settings."""


class Hang(BaseException):
    """Not an Exception, so that nothing swallows it."""


@contextmanager
def alarm(what: Any) -> Iterator[None]:
    """Raise Hang if the body does not end."""

    def ring(*_: Any) -> None:
        raise Hang(what)

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, HANG)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def message(error: UserError) -> str:
    """The text of an error, which must be one that a person can read."""
    text = str(error)
    assert text.strip(), "an empty message"
    assert "Traceback" not in text and " object at 0x" not in text, text
    return text


def check_sound(config: Config) -> None:
    """Assert what the module says of an accepted config."""
    for key, kind, value in leaves(config, ""):
        assert accepts(kind, value), f"{key}={value!r} was accepted, though it must be {describe(kind)}"
        for number in value if isinstance(value, list | tuple) else [value]:
            assert not isinstance(number, float) or math.isfinite(number) or accepts(kind, math.inf), f"{key}={value}"
    recorded = json.loads(json.dumps(config.model_dump(mode="json")))
    again = parse_recorded(recorded)
    assert again == config and again.digest == config.digest, "read again, it is another config"


def leaves(section: Any, prefix: str) -> Iterator[tuple[str, Any, Any]]:
    """(key, type, value) of all in a section and below, parameters of plug-ins with the types of their signatures."""
    plugins = {"loss.": LOSSES, "advantage.": ADVANTAGES, "rollout.engine.": ENGINES}
    if prefix in plugins:
        yield from _parameters(plugins[prefix][section.name], section.params, prefix)
    elif isinstance(section, Plugin):
        yield from _parameters(CORRECTIONS[section.function], section.params, prefix)
    elif dataclasses.is_dataclass(section):
        for field in dataclasses.fields(section):
            value = getattr(section, field.name)
            kind = BOUND if field.name in ("lower", "upper") else Any
            yield from _values(f"{prefix}{field.name}", kind, value)
    else:
        for name, field in type(section).model_fields.items():
            kind = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
            yield from _values(f"{prefix}{name}", kind, getattr(section, name))


def _values(key: str, kind: Any, value: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(value, BaseModel) or dataclasses.is_dataclass(value):
        yield from leaves(value, f"{key}.")
    elif key == "collapse.detectors":
        for name, params in value.items():
            yield from _parameters(DETECTORS[name], params, f"{key}.{name}.")
    elif isinstance(value, dict):  # of sections
        for name, item in value.items():
            yield from leaves(item, f"{key}.{name}.")
    else:
        yield key, kind, value


def _parameters(plugin: Callable, params: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any, Any]]:
    for name, value in params.items():
        yield f"{prefix}{name}", types_of(plugin).get(name, Any), value


def bounded(kind: Any) -> bool:
    """Whether each number that a type takes has a lower and an upper bound; an infinite one is said."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind == Infinite or origin is Literal:
        return True
    if origin is Annotated:
        signs = {sign for sign, _ in bounds(kind)}
        return bounded(inner[0]) or (bool(signs & {"gt", "ge"}) and bool(signs & {"lt", "le"}))
    return all(bounded(one) for one in inner if one is not ...) if inner else kind not in (int, float)
