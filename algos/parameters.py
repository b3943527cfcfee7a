"""Check of plug-in parameters against the types of the plug-in's signature.

    def my_loss(logp, logp_prox, advantages, mask, *, temperature: Annotated[float, Interval(gt=0, le=100)]): ...

A bound is one of `annotated_types`, or a pydantic `Field`. A string in the annotation describes the accepted values. Without
bounds, a float parameter accepts any number but NaN. True and "2" are not numbers. Importing this module does not import torch.
"""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Interval

LARGE = 1e9
"""Largest finite bound on a ratio that a config may give: ratios are at most e²⁰ = 4.9e8, and (1e9)² is finite in fp32."""
SMALL = 1e-9
"""Smallest positive bound on a ratio that a config may give: no ratio is below e⁻²⁰ = 2.1e-9, so less would have no effect."""

Infinite = Annotated[float, Ge(math.inf)]
Share = Annotated[float, Interval(gt=0, le=1), "a share in (0, 1]"]
Discount = Annotated[float, Interval(ge=0, le=1), "a number in [0, 1]"]
LowerOffset = Annotated[float, Interval(ge=0, le=1), "an offset from ratio 1 in [0, 1]"]
UpperOffset = Annotated[
    Annotated[float, Interval(ge=0, le=LARGE)] | Infinite,
    "an offset from ratio 1, ≥ 0: up to 1e9, or .inf for no bound",
]
LowerRatio = Annotated[float, Interval(ge=0, le=1), "an absolute ratio in [0, 1], 1 being the ratio of two equal policies"]
UpperRatio = Annotated[
    Annotated[float, Interval(ge=1, le=LARGE)] | Infinite,
    "an absolute ratio ≥ 1, the ratio of two equal policies: up to 1e9, or .inf for no bound",
]
Count = Annotated[int, Interval(ge=1, le=10**9)]
Seed = Annotated[int, Interval(ge=0, lt=2**63)]

SIGNS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}


def check(
    key: str,
    plugin: Callable,
    params: Mapping[str, Any],
    *,
    inputs: Sequence[str] | None = None,
    provided: Sequence[str] = (),
) -> None:
    """Raise ValueError unless `plugin(*inputs, **params)` fits the plug-in's signature and types.

    The error names the config key `key` and the parameter. inputs: names of the positional arguments, None to check none.
    provided: names of keyword-only arguments that the caller adds to `params`.
    """
    signature = _signature(plugin)
    if signature is None or not _takes(signature, inputs):
        what = getattr(plugin, "__qualname__", plugin)
        raise ValueError(f"{key}: {what}{signature or ''} cannot be called as ({', '.join(inputs or ())}, *, PARAMETERS)")
    keywords = [p for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY and p.name not in provided]
    accepted = {p.name: p for p in keywords}
    for name in params:
        if name not in accepted:
            takes = ", ".join(accepted) or "no parameters"
            raise ValueError(f"{key}.{name}: unknown; it takes {takes}; remove it with ~{key}.{name}")
    for name, parameter in accepted.items():
        if name not in params and parameter.default is parameter.empty:
            raise ValueError(f"{key}.{name}: missing; it is {describe(types_of(plugin).get(name, Any))}")
    check_values(key, plugin, params)


def check_values(key: str, plugin: Callable, params: Mapping[str, Any]) -> None:
    """Raise ValueError, naming the config key `key` and the parameter, on a value in `params` that its type does not accept."""
    for name, value in params.items():
        kind = types_of(plugin).get(name, Any)
        if not accepts(kind, value):
            raise ValueError(f"{key}.{name}={value!r}: must be {describe(kind)}")


@functools.cache
def types_of(plugin: Callable) -> dict[str, Any]:
    """Annotated types of a plug-in's parameters, by name; empty if an annotation cannot be resolved at run time."""
    try:
        return get_type_hints(plugin.__init__ if inspect.isclass(plugin) else plugin, include_extras=True)
    except NameError:
        return {}


def accepts(kind: Any, value: Any) -> bool:
    """Whether the annotated type `kind` accepts `value`. A type unknown to this function accepts everything but NaN."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return accepts(inner[0], value) and all(_within(value, sign, bound) for sign, bound in bounds(kind))
    if origin in (Union, types.UnionType):
        return any(accepts(one, value) for one in inner)
    if origin is Literal:
        return any(value == one and type(value) is type(one) for one in inner)
    if origin in (list, tuple, Sequence):
        items = [one for one in inner if one is not ...]
        return isinstance(value, list | tuple) and all(accepts(items[0], item) for item in value)
    if kind in (int, float):
        number = numbers.Integral if kind is int else numbers.Real
        return isinstance(value, number) and not isinstance(value, bool) and value == value  # NaN is not
    if kind in (None, type(None)):
        return value is None
    if kind in (bool, str):
        return isinstance(value, kind)
    return not (isinstance(value, float) and math.isnan(value))


def bounds(kind: Any) -> Iterator[tuple[str, float]]:
    """Yield each bound of an annotated type as a pair of its kind (gt, ge, lt or le) and its number."""
    for mark in getattr(kind, "__metadata__", ()):
        for part in getattr(mark, "metadata", (mark,)):  # pydantic's Field holds several
            for sign in SIGNS:
                if (bound := getattr(part, sign, None)) is not None:
                    yield sign, bound


def describe(kind: Any) -> str:
    """Describe in words the values that an annotated type accepts, such as "a whole number ≥ 1"."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        text = next((mark for mark in kind.__metadata__ if isinstance(mark, str)), "")
        limits = " and ".join(f"{SIGNS[sign]} {bound:g}" for sign, bound in bounds(kind))
        return text or f"{describe(inner[0])} {limits}".strip()
    if origin in (Union, types.UnionType):
        return ", or ".join(map(describe, inner))
    if origin is Literal:
        return " or ".join(map(str, inner))
    if origin in (list, tuple, Sequence):
        return f"a list, each of it {describe(inner[0])}"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
    return names.get(kind, "a value other than NaN")


def _within(value: Any, sign: str, bound: float) -> bool:
    return {"gt": value > bound, "ge": value >= bound, "lt": value < bound, "le": value <= bound}[sign]


@functools.cache
def _signature(plugin: Callable) -> inspect.Signature | None:
    try:
        return inspect.signature(plugin)
    except (TypeError, ValueError):  # not callable; or built in, without a signature
        return None


def _takes(signature: inspect.Signature, inputs: Sequence[str] | None) -> bool:
    """Whether a plug-in can be called with as many positional arguments as `inputs` has names; True if `inputs` is None."""
    if inputs is None:
        return True
    places = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    most = math.inf if any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()) else len(places)
    return sum(p.default is p.empty for p in places) <= len(inputs) <= most
