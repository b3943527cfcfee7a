"""The one way to compose the config of a run from `experiments/conf` and overrides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import hydra
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import IConfigRepository
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from omegaconf import open_dict

from harness.boundary import refusing
from harness.composer import composer, plain
from harness.conf import MODULE
from harness.yaml_file import read_yaml


def compose(*overrides: str) -> dict[str, Any]:
    """The resolved config of a run with these overrides, for `harness.config.parse`. Raises UserError if Hydra refuses."""
    with refusing(" ".join(overrides)):
        return composer()(overrides)


def check_files(folder: str | None) -> None:
    """Raise UserError on a file below --config-dir that Hydra could not read, or could not end to read."""
    for file in sorted(Path(folder).rglob("*.yaml")) if folder else ():
        read_yaml(file)


class Choices(NamedTuple):
    """config: as composed. chosen: group -> its option now. options: group -> all of its options."""

    config: dict[str, Any]
    chosen: dict[str, str]
    options: dict[str, list[str]]


def choices(*overrides: str) -> Choices:
    """The groups and options there are, and those that these overrides choose. Raises UserError if Hydra refuses them."""
    with refusing(" ".join(overrides)):
        with hydra.initialize_config_module(MODULE, version_base="1.3"):
            loader = GlobalHydra.instance().config_loader()
            assert isinstance(loader, ConfigLoaderImpl)
            composed = hydra.compose("config", list(overrides), return_hydra_config=True)
        groups = composed.hydra.runtime.choices.items()
        chosen = {group: str(option) for group, option in groups if not group.startswith("hydra/")}
        with open_dict(composed):
            del composed["hydra"]
        return Choices(plain(composed), chosen, dict(_options(loader.repository, "")))


def _options(repository: IConfigRepository, parent: str) -> Iterator[tuple[str, list[str]]]:
    for name in repository.get_group_options(parent, ObjectType.GROUP):
        group = f"{parent}/{name}" if parent else name
        if group != "hydra":
            if options := repository.get_group_options(group, ObjectType.CONFIG):
                yield group, sorted(options)
            yield from _options(repository, group)
