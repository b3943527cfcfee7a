"""The one way to compose the config of a run from `experiments/conf` and overrides."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import hydra
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from algos.registry import ADVANTAGES, CORRECTIONS, KL, LOSSES
from harness.config.names import RENAMED, write
from harness.errors import UserError


def compose(*overrides: str) -> dict[str, Any]:
    """The resolved config of a run with these overrides, for `harness.config.parse`. Raises UserError if Hydra refuses."""
    try:
        return composer()(overrides)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(refusal(error)) from None


@cache
def composer() -> Composer:
    """The composer outside of a multirun. Later calls cost nothing."""
    with hydra.initialize_config_module("experiments.conf", version_base="1.3"):
        return Composer(GlobalHydra.instance().config_loader(), hydra.compose("config", return_hydra_config=True))


def plain(composed: DictConfig) -> dict[str, Any]:
    """A composed config as a dictionary, its interpolations resolved."""
    values = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


class Composer:
    """Composes the runs of one multirun, whose own config is `config`.

    Each choice of groups is composed once, which takes a fifth of a second. Another run with the same choice takes milliseconds.
    """

    def __init__(self, loader: ConfigLoader, config: DictConfig):
        assert isinstance(loader, ConfigLoaderImpl)
        self.loader, self.config = loader, config
        self.parser = OverridesParser.create(config_loader=loader)
        self.parsed: dict[str, tuple[Override, bool]] = {}
        self.chosen: dict[tuple[str, ...], bytes] = {}

    def __call__(self, overrides: Sequence[str]) -> dict[str, Any]:
        """The resolved config of one run, without the node `hydra`. Raises HydraException or OmegaConfBaseException.

        Hydra, too, applies values in their order, once all groups are composed, and interpolations are resolved after that.
        """
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
        """The override, and whether Hydra must compose anew for it: it chooses a group, or sets where groups are looked for."""
        if text not in self.parsed:
            (override,) = self.parser.parse_overrides([text])
            is_value = isinstance(override.value(), dict) or not self.loader.repository.group_exists(override.key_or_group)
            self.parsed[text] = override, not is_value or override.key_or_group.startswith("hydra.")
        return self.parsed[text]


def refusal(error: Exception) -> str:
    """What Hydra refuses, in one line that names the key and the remedy."""
    if isinstance(error, MissingConfigException) and error.options:
        return _plugged(error.missing_cfg_file or "") or (
            f"{error.missing_cfg_file}: there is no such option; take one of {', '.join(error.options)}"
        )
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}; run.root must name a folder that can be written"
    if unknown := re.match(r"Could not override '(.+?)'", str(error)):
        if unknown[1] in RENAMED:
            return f"{unknown[1]}: renamed; write {write(unknown[1])}"
        return f"{unknown[1]}: unknown key; python -m experiments.train --help lists them all"
    return " ".join(str(error).split())


def _plugged(option: str) -> str | None:
    """How to choose a registered plug-in that has no config file, if `option` (group/name) is one."""
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


class Choices(NamedTuple):
    """config: as composed. chosen: group -> its option now. options: group -> all of its options."""

    config: dict[str, Any]
    chosen: dict[str, str]
    options: dict[str, list[str]]


def choices(*overrides: str) -> Choices:
    """What there is to choose, and what these overrides choose. Raises UserError if Hydra refuses them."""
    try:
        with hydra.initialize_config_module("experiments.conf", version_base="1.3"):
            loader = GlobalHydra.instance().config_loader()
            composed = hydra.compose("config", list(overrides), return_hydra_config=True)
        groups = composed.hydra.runtime.choices.items()
        chosen = {group: str(option) for group, option in groups if not group.startswith("hydra/")}
        with open_dict(composed):
            del composed["hydra"]
        return Choices(plain(composed), chosen, dict(_options(loader, "")))
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(refusal(error)) from None


def _options(loader: ConfigLoader, parent: str) -> Iterator[tuple[str, list[str]]]:
    for name in loader.list_groups(parent):
        group = f"{parent}/{name}" if parent else name
        if group != "hydra":
            if options := loader.get_group_options(group):
                yield group, sorted(options)
            yield from _options(loader, group)
