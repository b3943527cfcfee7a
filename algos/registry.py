"""Plug-ins by name. Importing this module costs nothing: an entry is loaded when it is first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any


class RegistryError(ValueError):
    """A name that is unknown, taken, or whose plug-in could not be loaded."""


class Registry:
    """The plug-ins of one kind: built-ins from one explicit table, others from the entry-point group `faultline.<kind>`.

    A name of the form `package.module:attribute` is loaded from there without being registered first.
    """

    def __init__(self, kind: str, builtin: dict[str, str]):
        self.kind = kind
        self._targets: dict[str, str | Callable[[], Any]] = dict(builtin)
        self._loaded: dict[str, Any] = {}
        self._discovered = False

    def register(self, name: str, plugin: Any) -> None:
        """Add `plugin` under `name`. Raises RegistryError if the name is taken."""
        self._claim(name, lambda: plugin)

    def names(self) -> list[str]:
        """All known names, sorted."""
        self._discover()
        return sorted(self._targets)

    def __getitem__(self, name: str) -> Any:
        """The plug-in called `name`. Raises RegistryError, with the plug-in's own traceback when it fails to load."""
        self._discover()
        if name not in self._loaded:
            target = self._targets.get(name, name if ":" in name else None)
            if target is None:
                raise RegistryError(
                    f"{self.kind}={name}: unknown; known are {', '.join(self.names())}, "
                    f"or a path of the form package.module:function"
                )
            try:
                self._loaded[name] = _import(target) if isinstance(target, str) else target()
            except Exception as error:
                raise RegistryError(f"{self.kind}={name}: the plug-in failed to load ({error})") from error
        return self._loaded[name]

    def _claim(self, name: str, load: Callable[[], Any]) -> None:
        if name in self._targets:
            raise RegistryError(f"{self.kind}={name}: the name is taken; a plug-in must use another")
        self._targets[name] = load

    def _discover(self) -> None:
        if not self._discovered:
            for point in entry_points(group=f"faultline.{self.kind}"):
                self._claim(point.name, point.load)
            self._discovered = True


def _import(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


LOSSES = Registry("losses", {"ppo": "algos.losses:ppo", "pg": "algos.losses:pg"})
ADVANTAGES = Registry("advantages", {"grpo": "algos.advantages:grpo", "dr_grpo": "algos.advantages:dr_grpo"})
