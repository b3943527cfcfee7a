"""Composition of configs by Hydra, and one-line explanations of its errors. Raises Hydra's own exceptions."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any

import hydra
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import MissingConfigException, OverrideParseException
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf, open_dict

from algos.registry import ADVANTAGES, CORRECTIONS, KL, LOSSES
from harness.conf import CONF, MODULE
from harness.config.names import RENAMED, write
from harness.config.removed import removal
from harness.errors import UserError
from harness.yaml_file import read_yaml


@cache
def composer() -> Composer:
    """Return a `Composer` of run configs for use outside Hydra's multirun, built at the first call and then cached."""
    with hydra.initialize_config_module(MODULE, version_base="1.3"):
        return Composer(GlobalHydra.instance().config_loader(), hydra.compose("config", return_hydra_config=True))


def plain(composed: DictConfig) -> dict[str, Any]:
    """Convert a composed config to a dictionary, with its interpolations resolved."""
    values = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


class _Files(ConfigRepository):
    """Hydra's config files. Those of a package are parsed once; Hydra does so for each composition, a third of its time."""

    def __init__(self, repository: ConfigRepository):
        self.sources, self.parsed = repository.sources, dict[tuple[str, str], bytes]()

    def __deepcopy__(self, memo: Any) -> _Files:
        """Return what Hydra keeps for one composition. It may change the search path; the parsed files are shared."""
        return copy.copy(self)

    def load_config(self, config_path: str) -> ConfigResult | None:
        """Return a copy, since Hydra changes what it composes. A folder of the user's is read anew each time."""
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        if source is None or source.scheme() != "pkg":
            return super().load_config(config_path)
        key = source.path, config_path
        if key not in self.parsed:
            self.parsed[key] = pickle.dumps(super().load_config(config_path))
        return pickle.loads(self.parsed[key])


class Composer:
    """Composes run configs from Hydra overrides. Each choice of group options is composed once, in 0.1 seconds, and cached."""

    def __init__(self, loader: ConfigLoader, config: DictConfig):
        assert isinstance(loader, ConfigLoaderImpl)
        self.loader, self.config = copy.copy(loader), config
        self.loader.repository = _Files(loader.repository)
        self.parser = OverridesParser.create(config_loader=loader)
        self.parsed: dict[str, tuple[Override, bool]] = {}
        self.chosen: dict[tuple[str, ...], bytes] = {}

    def __call__(self, overrides: Sequence[str]) -> dict[str, Any]:
        """Compose the resolved config of one run. Raises errors that `harness.boundary` explains."""
        parsed = [self._parse(override) for override in overrides]
        groups = tuple(text for text, (_, is_group) in zip(overrides, parsed, strict=True) if is_group)
        if groups not in self.chosen:
            composed = self.loader.load_sweep_config(self.config, list(groups))
            with open_dict(composed):
                del composed["hydra"]
            self.chosen[groups] = pickle.dumps(composed)  # copied so in a sixth of the time that deepcopy takes
        config = pickle.loads(self.chosen[groups])
        ConfigLoaderImpl._apply_overrides_to_config([override for override, is_group in parsed if not is_group], config)
        return plain(config)

    def _parse(self, text: str) -> tuple[Override, bool]:
        """Parse an override. Also returns whether Hydra must compose anew for it, as for a group option or a `hydra.` key."""
        if text not in self.parsed:
            (override,) = self.parser.parse_overrides([text])
            check_choices([override])
            is_value = isinstance(override.value(), dict) or not self.loader.repository.group_exists(override.key_or_group)
            self.parsed[text] = override, not is_value or override.key_or_group.startswith("hydra.")
        return self.parsed[text]


def refusal(error: Exception) -> str:
    """One line for an error that Hydra raised, with the key and the remedy."""
    if isinstance(error, OverrideParseException):
        reason = " ".join(str(error).split()).partition(" See https")[0]
        return f"{error.override}: not KEY=VALUE as Hydra reads it ({reason}); quote a value as KEY='\"...\"'"
    if isinstance(error, MissingConfigException) and error.options:
        missing = error.missing_cfg_file or ""
        options = _option_names(missing.rpartition("/")[0]) or error.options
        return _plugged(missing) or f"{missing}: there is no such option; take one of {', '.join(options)}"
    unchosen = re.match(r"Could not override '(.+?)'.*No match in the defaults list.*use (\+\S+)", str(error), re.S)
    if unchosen and _option_names(unchosen[1]):
        return f"{unchosen[1]}: not in the config so far; write {unchosen[2]}"
    if unknown := re.match(r"Could not override '(.+?)'", str(error)):
        if unknown[1] in RENAMED:
            return f"{unknown[1]}: renamed; write {write(unknown[1])}"
        if gone := removal(unknown[1]):
            return f"{unknown[1]}: {gone}"
        if options := _options_with(unknown[1]):
            several = "one of these first" if len(options) > 1 else "that first"
            return f"{unknown[1]}: a key of {', '.join(options)} and not of the chosen option; choose {several}"
        if filtered := re.match(r"correction\.reject\.(\w+)", unknown[1]):
            own = f"+{filtered[0]}={{level: token, upper: 2}}"
            return f"{filtered[0]}: the chosen correction has no such filter; add one by all of its keys, as '{own}'"
        near = get_close_matches(unknown[1], _keys(composer()(())), 1, 0.8)
        if not near and re.match(r"task\.params\.\w+", unknown[1]):
            return f"{unknown[1]}: not in the config so far; write +{unknown[1]}"
        meant = f"the nearest is {near[0]}; " if near else ""
        return f"{unknown[1]}: unknown key; {meant}faultline train --help lists them all"
    return " ".join(str(error).split())


def check_choices(overrides: Iterable[Override]) -> None:
    """Raise UserError if an override has no key, or gives a group anything but a name, since Hydra's error omits the key."""
    for override in overrides:
        options, value = _option_names(override.key_or_group), override.value()
        if not override.key_or_group:
            raise UserError(f"{override.input_line}: no key; write KEY=VALUE")
        deleted = override.is_delete()
        if not options or override.is_sweep_override() or isinstance(value, dict) or (deleted and value is None):
            continue
        names = value if isinstance(value, list) and not deleted else [value]
        if not all(isinstance(name, str) for name in names):
            raise UserError(f"{override.input_line}: {override.key_or_group} takes one of {', '.join(options)}")


def _keys(values: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Every key of nested sections as a dotted path, the sections themselves included."""
    below = [key for name, value in values.items() if isinstance(value, dict) for key in _keys(value, f"{prefix}{name}.")]
    return [f"{prefix}{name}" for name in values] + below


def _option_names(group: str) -> list[str]:
    """Names of the options of a config group in experiments/conf, then "NAME/..." for each subfolder; [] without the group."""
    if not re.fullmatch(r"\w[\w/]*", group) or not (CONF / group).is_dir():
        return []
    entries = sorted((CONF / group).iterdir())
    folders = [f"{entry.name}/..." for entry in entries if entry.is_dir() and not entry.name.startswith("_")]
    return [entry.stem for entry in entries if entry.suffix == ".yaml"] + folders


def _options_with(key: str) -> list[str]:
    """Options, as group=name, whose own file defines the dotted key."""
    group, _, own = key.partition(".")
    files = sorted((CONF / group).glob("*.yaml")) if own and _option_names(group) else []
    return [f"{group}={file.stem}" for file in files if own in (read_yaml(file) or {})]


def _plugged(option: str) -> str | None:
    """Advice for choosing the registered plug-in `option` (group/name), which has no config file; None for any other option."""
    group, _, name = option.rpartition("/")
    forms = {
        "loss": (LOSSES, f"loss=pg loss.name={name} and +loss.KEY=VALUE for each parameter"),
        "advantage": (ADVANTAGES, f"advantage=reinforce advantage.name={name} and +advantage.KEY=VALUE for each parameter"),
        "kl": (KL, f"kl=k2 kl.name={name}"),
        "correction": (CORRECTIONS, f"'+correction.reject.{name}={{function: {name}, params: {{KEY: VALUE}}}}'"),
    }
    if group not in forms or name not in forms[group][0].names():
        return None
    own = f"write it as DIR/{group}/{name}.yaml and put --config-dir DIR before the overrides"
    return f"{group}={name}: a plug-in without a config file; use {forms[group][1]}, or {own}"
