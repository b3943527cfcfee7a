"""Composition of run configs from `experiments/conf` and command-line overrides, with Hydra's errors turned into UserError."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hydra._internal.config_repository import IConfigRepository
from hydra.core.object_type import ObjectType
from hydra.types import RunMode
from omegaconf import open_dict

from harness.boundary import refusing
from harness.composer import composer, plain
from harness.errors import UserError
from harness.yaml_file import read_yaml


def compose(*overrides: str, config_dir: Path | None = None) -> dict[str, Any]:
    """Compose the config of a run with these overrides, for `harness.config.parse`. Raises UserError if Hydra refuses them.

    config_dir: folder with config groups of the user, as Hydra's --config-dir names it.
    """
    if config_dir is not None:
        if not config_dir.is_dir():
            raise UserError(f"--config-dir {config_dir}: no such folder; give the one that holds experiment/NAME.yaml")
        check_files(str(config_dir))
        quoted = str(config_dir.resolve()).replace("'", r"\'")
        overrides = (*overrides, f"hydra.searchpath=['file://{quoted}']")
    with refusing(" ".join(overrides)):
        return composer()(overrides)


def check_files(folder: str | None) -> None:
    """Raise UserError for a YAML file below --config-dir that Hydra cannot read, that is no regular file, or that is empty.

    A command that failed leaves an empty file where its output was to go, and Hydra would take it for an option without keys.
    """
    for file in sorted(Path(folder).rglob("*.yaml")) if folder else ():
        if read_yaml(file) is None:
            raise UserError(f"{file}: empty; write the command's output into it again, or {{}} for an option without keys")


class Choices(NamedTuple):
    """A composed `config` and the choices in it. chosen: config group -> its chosen option. options: group -> all its options."""

    config: dict[str, Any]
    chosen: dict[str, str]
    options: dict[str, list[str]]


def choices(*overrides: str) -> Choices:
    """Compose the config and list all config groups, their options and the chosen ones. Raises UserError if Hydra refuses."""
    with refusing(" ".join(overrides)):
        loader = composer().loader
        composed = loader.load_configuration("config", list(overrides), RunMode.RUN, from_shell=False)
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
