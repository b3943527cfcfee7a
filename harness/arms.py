"""The name of an arm: what the runs of a sweep are called wherever people read, torch-free.

A sweep is a grid of runs, and runs that differ in their seed alone form an arm. The name of an arm tells the precision of its
rollouts, its loss, its correction, and every other key in which the runs of the sweep differ. No two arms share a name.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from harness.config import OPERATION

NONE = "none"
"""The correction of an uncorrected arm."""
UNNAMED = (*OPERATION, "seed")
"""Sections that no name tells."""
NAMED = ("rollout.precision.name", "loss.name", "routing.replay")
"""Keys that the name of an arm tells in a place of their own."""


class Arm(NamedTuple):
    """The parts of a name, which `str` joins.

    precision: of the rollout. loss, correction: the names of the plug-ins, and those of their keys in which runs of the same
    plug-in differ. A routing replay is named beside the correction, since it is a remedy too. setting: every other key in which
    runs of the sweep differ. Keys are written key=JSON.
    """

    precision: str
    loss: str
    correction: str
    setting: str

    def __str__(self) -> str:
        correction = "" if self.correction == NONE else self.correction
        return " ".join(filter(None, (self.precision, self.loss, correction, self.setting)))


def arm(config: Mapping[str, Any]) -> Arm:
    """The arm of a run whose sweep is unknown: precision, loss and correction. Raises KeyError on what is no config.

    A weight that is computed for its metrics alone corrects nothing.
    """
    weight = config["correction"]["weight"]
    parts = [f"{weight['level']}-{weight['action']}"] if weight["level"] and weight.get("apply", True) else []
    parts += [f"reject-{name}" for name in sorted(config["correction"]["reject"])]
    replay = config.get("routing", {}).get("replay", NONE)
    parts += [replay] if replay != NONE else []
    return Arm(config["rollout"]["precision"]["name"], config["loss"]["name"], " ".join(parts) or NONE, "")


def arms(configs: Mapping[str, Mapping[str, Any]], but: Collection[str] = ()) -> dict[str, Arm]:
    """Run -> arm, for all runs of a sweep; `configs` are complete, as JSON has them.

    A key beside a name is compared among runs of that name: `loss.eps_low` among runs of one loss, since the name tells the
    losses apart already. Keys of `correction` are compared among runs of the same levels, actions and filters. Keys in `but`
    are left out, as if no run differed in them.
    """
    named = {run: {name: part for name, part in config.items() if name not in UNNAMED} for run, config in configs.items()}
    texts = {run: json.dumps(config) for run, config in named.items()}
    names = _names({texts[run]: config for run, config in named.items()}, but)
    return {run: names[text] for run, text in texts.items()}


def _names(configs: Mapping[str, Mapping[str, Any]], but: Collection[str]) -> dict[str, Arm]:
    """`arms` of configs that all differ."""
    plain = {run: arm(config) for run, config in configs.items()}
    flat = _alike({run: _flat(config, but) for run, config in configs.items()})
    differing = _differing(flat, plain)
    named = {}
    for run, values in flat.items():
        words: dict[str, list[str]] = defaultdict(list)
        for key in sorted(values):
            if (key, _context(key, values, plain[run])) in differing:
                words[_part(key, plain[run])].append(f"{key}={json.dumps(values[key])}")
        parts = plain[run]._asdict().items()
        named[run] = Arm(**{part: " ".join(filter(None, (name, *words[part]))) for part, name in parts})
    return named


def _part(key: str, plain: Arm) -> str:
    """The part of a name in which a key stands; a key that tells uncorrected arms apart makes none of them corrected."""
    section = key.partition(".")[0]
    corrected = section == "correction" and plain.correction != NONE
    return section if section == "loss" or corrected else "setting"


def _flat(config: Mapping[str, Any], but: Collection[str]) -> dict[str, Any]:
    flat = flatten(config)
    if not config["correction"]["weight"]["level"]:  # its keys would name an arm without a weight beside one that measures it
        flat = {key: value for key, value in flat.items() if not key.startswith("correction.weight.")}
    return {key: value for key, value in flat.items() if key not in but}


def _alike(flat: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Whole numbers as floats where another run has a float, since `noise=0` is `noise=0.0` to a plug-in."""
    floats = {key for values in flat.values() for key, value in values.items() if type(value) is float}
    return {
        run: {key: float(value) if key in floats and type(value) is int else value for key, value in values.items()}
        for run, values in flat.items()
    }


def _differing(flat: Mapping[str, dict[str, Any]], plain: Mapping[str, Arm]) -> set[tuple[str, str]]:
    """(key, context) where runs of one context disagree. A run without the key disagrees with one that has it."""
    differing = set()
    for key in dict.fromkeys(key for values in flat.values() for key in values):
        if key in NAMED or not differs(key, flat.values()):
            continue
        seen = defaultdict(set)
        for run, values in flat.items():
            seen[_context(key, values, plain[run])].add(_text(values, key))
        differing |= {(key, context) for context, texts in seen.items() if len(texts) > 1}
    return differing


def _context(key: str, values: Mapping[str, Any], plain: Arm) -> str:
    """Within what a key is compared: the correction, the nearest name beside the key or above it, or the whole sweep."""
    if key.startswith("correction."):
        return plain.correction
    section = key
    while section := section.rpartition(".")[0]:
        name = f"{section}.name"
        if name != key and name in values:
            return str(values[name])
    return ""


# --- flat configs --------------------------------------------------------------------------------------------------------


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys joined by dots."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return flat


def differs(key: str, configs: Iterable[Mapping[str, Any]]) -> bool:
    """Whether flat configs disagree in `key`; one without the key disagrees with one that has it."""
    return len({_text(values, key) for values in configs}) > 1


def _text(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else ""


def shared(flat: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The keys in which all flat configs agree, with their values."""
    return {key: value for key, value in flat[0].items() if not differs(key, flat)}
