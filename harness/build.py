"""From the names in a config to the plug-ins, with their parameters checked and bound."""

from __future__ import annotations

import functools
import inspect
import json
import math
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from algos.objective import Objective
from algos.registry import ADVANTAGES, KL, LOSSES, Registry
from harness.collapse import DETECTORS
from harness.config import Config, HubConfig, PluginConfig, PrecisionConfig
from harness.errors import UserError
from harness.models import hub_tokenizer
from harness.rollouts import ENGINES
from harness.tasks import TASKS, Task

PROVIDED = {"lengths", "greedy"}
"""Inputs that a run has for an advantage estimator, besides the rewards."""


def build_objective(config: Config) -> Objective:
    """loss x correction x proximal x reduction of a config. Raises UserError on a loss that is not decorated."""
    loss = bound(LOSSES, "loss", config.loss)
    if not hasattr(loss.func, "anchored"):
        raise UserError(f"loss.name={config.loss.name}: does not say whether it is anchored; decorate it with @loss(anchored=…)")
    kl = None if config.kl.name is None else KL[config.kl.name]
    return Objective(loss, config.correction, config.proximal, config.reduce.mode, config.reduce.norm, kl, config.kl.coef)


def build_advantage(config: Config) -> functools.partial:
    """The advantage estimator of a config.

    Raises UserError if it needs an input that a run does not have, or does not declare its inputs.
    """
    needs = getattr(ADVANTAGES[config.advantage.name], "needs", None)
    if needs is None:
        raise UserError(f"advantage.name={config.advantage.name}: does not say what it needs; decorate it with @advantage()")
    if missing := set(needs) - PROVIDED:
        raise UserError(f"advantage={config.advantage.name}: needs {', '.join(sorted(missing))}, which a run does not have")
    return bound(ADVANTAGES, "advantage", config.advantage, provided=(*needs, "kept"))


def build_engine(config: Config) -> functools.partial:
    """The rollout engine of a config with its own parameters bound; see RolloutEngine for the others."""
    provided = ("kv_cache", "temperature", "top_p", "top_k", "stop")
    return bound(ENGINES, "rollout.engine", config.rollout.engine, provided=provided)


def build_task(config: Config) -> Task:
    """The task of a config. Raises UserError on data that cannot be used."""
    tokenizer = hub_tokenizer(config.model) if isinstance(config.model, HubConfig) else None
    return TASKS[config.task.name](config.task, tokenizer)


def build_detectors(config: Config) -> dict[str, functools.partial]:
    """The collapse detectors of a config by name; each is made by a call without arguments."""
    return {name: bind(DETECTORS[name], f"collapse.detectors.{name}", p) for name, p in config.collapse.detectors.items()}


def bound(registry: Registry, key: str, named: PluginConfig, provided: tuple[str, ...] = ()) -> functools.partial:
    """A plug-in with its parameters bound. Raises UserError naming a parameter that it does not take or misses."""
    return bind(registry[named.name], key, named.params, provided)


def _annotations(plugin) -> dict[str, Any]:
    """Types of the parameters by name; empty where a plug-in names types that only a type checker sees."""
    try:
        return get_type_hints(plugin.__init__ if inspect.isclass(plugin) else plugin, include_extras=True)
    except NameError:
        return {}


def bind(plugin, key: str, params: dict, provided: tuple[str, ...] = ()) -> functools.partial:
    """`plugin` with `params` bound to its keyword-only parameters; the run passes those in `provided` later.

    Raises UserError on an unknown name, a missing one, or a value that is not of the annotated type. NaN is of no type, and true
    and '2' are no numbers.
    """
    keywords = [p for p in inspect.signature(plugin).parameters.values() if p.kind is p.KEYWORD_ONLY]
    accepted = {p.name: p for p in keywords if p.name not in provided}
    for name in params:
        if name not in accepted:
            start = "; for a plug-in start from loss=pg, which sets none" if key == "loss" else ""
            raise UserError(f"{key}.{name}: unknown; it takes {', '.join(accepted) or 'no parameters'}{start}")
    for name, parameter in accepted.items():
        if name not in params and parameter.default is parameter.empty:
            raise UserError(f"{key}.{name}: missing")
    types = _annotations(plugin)
    for name, value in params.items():
        if isinstance(value, float) and math.isnan(value):
            raise UserError(f"{key}.{name}=nan: give a number")
        try:  # as JSON, where a list is a tuple too
            TypeAdapter(types.get(name, Any)).validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            raise UserError(f"{key}.{name}={value!r}: {error.errors()[0]['msg']}") from None
    return functools.partial(plugin, **params)


def needs_own_sampler(config: Config) -> bool:
    """Whether the run samples from the trainer's own policy, or scores along its sampling path."""
    local = config.actor.scoring == "exact" or config.evaluation.policy == "own" or bool(config.evaluation.probe)
    return local or (config.kl.name is not None and config.kl.reference == "start")


def own_precision(config: Config) -> PrecisionConfig:
    """The precision of the trainer's own policy."""
    return PrecisionConfig(name=config.actor.dtype, compute=config.actor.dtype, weights=None, activations=None)
