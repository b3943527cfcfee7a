"""Removed config keys. A new config that has one is refused with the reason. A recorded config may have one at its default."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from harness.config.digest import plugins, section
from harness.errors import UserError


class Removed(NamedTuple):
    """A removed config key: the reason of its removal, and how runs behave without it."""

    default: Any
    """Value of the removed key for which a run behaves as it does without the key."""
    version: str
    """First version of the project without the key."""
    reason: str
    """Reason of the removal, and what to use instead. The text continues an error message that ends in "as"."""


_NOISE_OF_VLLM = "no study put noise on the weights of vLLM; use rollout/engine=local for a synthetic mismatch"
_OVERLAP = "it changed the wall clock alone, and no run used it; rollout.staleness gives the same responses"
_BASELINE = "no study compared it; every response enters the baseline of the advantages"
_REFERENCE = "no study pulled towards the policy that sampled; the reference is the policy that the run started from"
_TENSORBOARD = "no run used it; W&B mirrors a run, offline too, and its folder is the record"
_LEFT_OUT = "the map of sources (docs/sources.md) saw no effect of it; every linear layer is cast"
_LAYERS = {
    "first_layers": Removed(0, "0.2.0", _LEFT_OUT),
    "last_layers": Removed(0, "0.2.0", _LEFT_OUT),
    "ignore": Removed([], "0.2.0", _LEFT_OUT),
}
_DRAFT = "the map of sources (docs/sources.md) saw no effect of it; `faultline replay` knows a wrong draft as the fault `sampler`"
REMOVED: dict[str, dict[str, Removed]] = {
    "": {
        "baseline": Removed("all", "0.2.0", _BASELINE),
    },
    "kl": {
        "reference": Removed("start", "0.2.0", _REFERENCE),
    },
    "rollout": {
        "overlap": Removed(False, "0.2.0", _OVERLAP),
    },
    "tracking": {
        "tensorboard": Removed(False, "0.2.0", _TENSORBOARD),
    },
    "rollout.precision": _LAYERS,
    "actor.precision": _LAYERS,
    "evaluation.probe.*": _LAYERS,
    "rollout.engine=local": {
        "draft_error": Removed(0.0, "0.2.0", _DRAFT),
        "split_sums": Removed(1, "0.2.0", "the map of sources (docs/sources.md) saw no effect of it beside BF16's own rounding"),
    },
    "rollout.engine=vllm": {
        "noise": Removed(0.0, "0.2.0", _NOISE_OF_VLLM),
        "noise_persistence": Removed(0.0, "0.2.0", _NOISE_OF_VLLM),
        "noise_seed": Removed(0, "0.2.0", _NOISE_OF_VLLM),
    },
}
"""Section of the config ("" for its top level; * for each of several), or plug-in such as rollout.engine=vllm -> its removed
keys."""


def refuse_removed(values: dict[str, Any]) -> None:
    """Raise UserError naming each removed key that the nested `values` contain."""
    _refuse(_found(values))


def removal(key: str) -> str | None:
    """Reason why the dotted `key` was removed; None if no section or plug-in ever had it."""
    where, _, own = key.rpartition(".")
    found = (keys[own] for place, keys in REMOVED.items() if place.partition("=")[0] == where and own in keys)
    return next(map(_why, found), None)


def drop_removed(values: dict[str, Any]) -> None:
    """Delete removed keys from a recorded config. Raises UserError for values other than their defaults."""
    found = list(_found(values))
    _refuse(one for one in found if one.own[one.key] != one.gone.default)
    for one in found:
        del one.own[one.key]


class _Found(NamedTuple):
    """A removed key found in a config.

    place: dotted name of its section, "" at the top. own: the section's keys and values. key: its name. gone: its last default,
    and why it was removed.
    """

    place: str
    own: dict[str, Any]
    key: str
    gone: Removed


def _found(values: dict[str, Any]) -> Iterator[_Found]:
    there = dict(plugins(values))
    for place, keys in REMOVED.items():
        sections = {place.partition("=")[0]: there.get(place, {})} if "=" in place else _sections(values, place)
        for name, own in sections.items():
            yield from (_Found(name, own, key, gone) for key, gone in keys.items() if key in own)


def _sections(values: dict[str, Any], place: str) -> dict[str, dict[str, Any]]:
    """The sections of a config that a place of REMOVED stands for, by their dotted names."""
    if not place.endswith(".*"):
        return {place: section(values, place) if place else values}
    above = place.removesuffix(".*")
    return {f"{above}.{name}": section(values, f"{above}.{name}") for name in section(values, above)}


def _refuse(found: Iterable[_Found]) -> None:
    if lines := [f"{place}{'.' if place else ''}{key}={own[key]}: {_why(gone)}" for place, own, key, gone in found]:
        raise UserError("\n".join(lines))


def _why(gone: Removed) -> str:
    return f"removed in {gone.version}, as {gone.reason}"
