"""Names of the arms of a sweep, as reports, tables and figures show them. Torch-free.

A sweep is a grid of runs. Runs that differ only in their seed form an arm. The name of an arm states its rollout precision,
loss and correction, and also every other key in which runs of the sweep differ. No two arms of a sweep share a name.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from harness.config import OPERATION

NONE = "none"
"""Name of the correction in an arm whose runs have none. `str` of the arm leaves it out."""
UNNAMED = (*OPERATION, "seed")
"""Config sections left out of the name of an arm (runs alike but for the seed): the seed, and those that change no result."""
NAMED = ("rollout.precision.name", "loss.name", "routing.replay")
"""Config keys with a fixed place in the name of an arm (runs alike but for the seed), so never added as key=value."""


class Arm(NamedTuple):
    """Parts of the name that runs share if they differ only in their seed. `str` joins them.

    precision: rollout precision. loss, correction: names of the plug-ins, with the keys in which runs of the same plug-in
    differ. Routing replay is named in `correction`, because it also counters the mismatch of engine and trainer. setting: all
    other keys in which the runs of the sweep differ. Keys are written key=JSON.
    """

    precision: str
    loss: str
    correction: str
    setting: str

    def __str__(self) -> str:
        correction = "" if self.correction == NONE else self.correction
        return " ".join(filter(None, (self.precision, self.loss, correction, self.setting)))


def arm(config: Mapping[str, Any]) -> Arm:
    """Name the arm (group of runs alike but for the seed) of one run, by its precision, loss and correction.

    An importance weight that is computed only for its metrics (apply=false) does not count as a correction. The field `setting`
    is empty, because it depends on the other runs of the sweep. Raises KeyError on an incomplete config.
    """
    weight = config["correction"]["weight"]
    parts = [f"{weight['level']}-{weight['action']}"] if weight["level"] and weight.get("apply", True) else []
    parts += [f"reject-{name}" for name in sorted(config["correction"]["reject"])]
    replay = config.get("routing", {}).get("replay", NONE)
    parts += [replay] if replay != NONE else []
    return Arm(config["rollout"]["precision"]["name"], config["loss"]["name"], " ".join(parts) or NONE, "")


def arms(configs: Mapping[str, Mapping[str, Any]], but: Collection[str] = ()) -> dict[str, Arm]:
    """Map each run of a sweep to its arm. Runs that differ only in their seed share an arm. configs: run -> whole config.

    A key that belongs to a named plug-in is compared among runs of that plug-in only: `loss.eps_low` among runs of one loss.
    Keys of `correction` are compared among runs of the same correction (levels, actions, filters). Keys in `but` are left out,
    as if no run differed in them. So is warmstart.seed if it equals `seed` in every run.
    """
    named = {run: {name: part for name, part in config.items() if name not in UNNAMED} for run, config in configs.items()}
    warm = [(config.get("warmstart"), config.get("seed")) for config in configs.values()]
    if all(start is not None and start["seed"] == seed for start, seed in warm):  # then a warm start is a part of the replicate
        but = (*but, "warmstart.seed")
    texts = {run: json.dumps(config) for run, config in named.items()}
    names = _names({texts[run]: config for run, config in named.items()}, but)
    return {run: names[text] for run, text in texts.items()}


def _names(configs: Mapping[str, Mapping[str, Any]], but: Collection[str]) -> dict[str, Arm]:
    """Name the arm (runs alike but for the seed) of each config. No two configs are equal. but: keys that no name states."""
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
    """Field of `Arm` that states `key`: "loss" for loss.*, "correction" for correction.* if there is one, else "setting"."""
    section = key.partition(".")[0]
    corrected = section == "correction" and plain.correction != NONE
    return section if section == "loss" or corrected else "setting"


def _flat(config: Mapping[str, Any], but: Collection[str]) -> dict[str, Any]:
    flat = flatten(config)
    if not config["correction"]["weight"]["level"]:  # its keys would name an arm without a weight beside one that measures it
        flat = {key: value for key, value in flat.items() if not key.startswith("correction.weight.")}
    return {key: value for key, value in flat.items() if key not in but}


def _alike(flat: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Convert a key's integers to floats if any run has a float there, because 0 means 0.0. flat: run -> flat config."""
    floats = {key for values in flat.values() for key, value in values.items() if type(value) is float}
    return {
        run: {key: float(value) if key in floats and type(value) is int else value for key, value in values.items()}
        for run, values in flat.items()
    }


def _differing(flat: Mapping[str, dict[str, Any]], plain: Mapping[str, Arm]) -> set[tuple[str, str]]:
    """Pairs (config key, context) such that runs with the same context, for example the same loss, differ in the key."""
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
    """Text that runs must share to be compared in `key`: name of the correction or plug-in that has this key, else ""."""
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
    """Flatten a nested config: its keys become dotted paths that begin with `prefix`. An empty section stays as it is."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return flat


def differs(key: str, configs: Iterable[Mapping[str, Any]]) -> bool:
    """Whether flat configs (dotted key -> value) differ in `key`. A config without the key differs from one that has it."""
    return len({_text(values, key) for values in configs}) > 1


def _text(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else ""


def shared(flat: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Keys and values that all of the flat configs (dotted key -> value) have in common."""
    return {key: value for key, value in flat[0].items() if not differs(key, flat)}
