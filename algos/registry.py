"""Registries of plug-ins by name. Importing this module costs nothing: a plug-in is imported at its first use."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from importlib.metadata import EntryPoints, entry_points
from typing import Any


class RegistryError(ValueError):
    """Raised for a plug-in name that is unknown or taken, and for a plug-in that fails to load (its error is the cause)."""


@functools.cache
def installed() -> EntryPoints:
    """The entry points of every installed package, read once per process because the search goes through all package folders."""
    return entry_points()  # type: ignore[return-value]  # before Python 3.12 it is another class with the same `select`


class Registry:
    """A registry of one kind of plug-in, by name: the built-ins, and the installed entry points of the group `faultline.<kind>`.

    A name of the form `package.module:attribute` needs no registration: the attribute is loaded from that module.
    """

    def __init__(self, kind: str, builtin: dict[str, str]):
        self.kind = kind
        self._targets: dict[str, str | Callable[[], Any]] = dict(builtin)
        self._loaded: dict[str, Any] = {}
        self._discovered = False

    def register(self, name: str, plugin: Any) -> None:
        """Add `plugin` to the registry under `name`. Raises RegistryError if the name is taken."""
        self._targets = _claimed(self.kind, self._targets, name, lambda: plugin)

    def names(self) -> list[str]:
        """Sorted names of all plug-ins of the registry, the installed ones included."""
        self._discover()
        return sorted(self._targets)

    def __getitem__(self, name: str) -> Any:
        """The plug-in called `name`. Raises RegistryError if it is unknown, or with the cause if it fails to load."""
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
            except _Absent as error:
                remedy = "write package.module:function, found on PYTHONPATH"
                raise RegistryError(f"{self.kind}={name}: {error}; {remedy}") from None
            except Exception as error:
                raise RegistryError(f"{self.kind}={name}: the plug-in failed to load ({error})") from error
        return self._loaded[name]

    def _discover(self) -> None:
        """Add the installed plug-ins to the registry; add none, and raise RegistryError, if one has a name that is taken."""
        if not self._discovered:
            targets = self._targets
            for point in installed().select(group=f"faultline.{self.kind}"):
                targets = _claimed(self.kind, targets, point.name, point.load)
            self._targets, self._discovered = targets, True


def _claimed(kind: str, targets: dict[str, Any], name: str, load: Callable[[], Any]) -> dict[str, Any]:
    if name in targets:
        raise RegistryError(f"{kind}={name}: the name is taken; a plug-in must use another")
    return targets | {name: load}


class _Absent(Exception):
    """Raised when a path `package.module:attribute` names a module or attribute that does not exist."""


def _import(path: str) -> Any:
    module, _, attribute = path.partition(":")
    if not all(part.isidentifier() for part in module.split(".")):
        raise _Absent(f"{module!r} is no name of a module")
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # a module that the plug-in imports is missing
        raise _Absent(f"there is no module {error.name}") from None
    if not hasattr(loaded, attribute):
        raise _Absent(f"module {module} has no {attribute!r}")
    return getattr(loaded, attribute)


def _from(module: str, *names: str) -> dict[str, str]:
    return {name: f"{module}:{name}" for name in names}


LOSSES = Registry(
    "losses",
    {
        **_from("algos.losses", "ppo", "gspo", "luspo", "gmpo", "sapo", "dro", "dppo", "clip_cov", "kl_cov"),
        **_from("algos.losses", "ctpo", "minpro"),
        **_from("algos.losses", "pg", "cross_entropy", "cispo", "rollout_is", "topr", "vespo"),
        "gpg": "algos.losses:pg",  # GPG's loss is REINFORCE; its advantages are its own
    },
)
"""Registry of losses `(logp, logp_prox, advantages, mask, **params) -> TokenLoss`; `algos.losses.base` explains the signature."""

ADVANTAGES = Registry(
    "advantages",
    {
        **_from("algos.advantages", "reinforce", "grpo", "grpo_batch_std", "dr_grpo", "gpg", "rloo", "maxrl", "remax"),
        **_from("algos.advantages", "pass_at_k", "opo", "reinforce_pp", "reinforce_pp_baseline"),
        "gae": "algos.returns:gae",
    },
)
"""Registry of advantage estimators `(rewards, **inputs) -> advantages`; the attribute `.needs` of each names its inputs."""

CORRECTIONS = Registry("corrections", {"m2po": "algos.corrections.m2po:m2po"})
"""Registry of filters `(log_ratio, mask, **params) -> kept [B, T] bool`, with conditions that `spec.Reject` lacks."""

KL = Registry("kl", {**_from("algos.kl", "k1", "k2", "k3", "k3_k2", "k3_unbiased"), "abs": "algos.kl:absolute"})
"""Registry of KL estimators `(logp, logp_ref, mask, logp_prox) -> [B, T]`; `algos.kl` explains the signature."""
