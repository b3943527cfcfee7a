"""From names in a config to the plug-ins that they mean, with their parameters checked."""

from __future__ import annotations

import functools
import inspect
from typing import Any, get_type_hints

import torch
from pydantic import TypeAdapter, ValidationError

from algos.corrections.spec import Plugin, check_combination
from algos.objective import Objective
from algos.reductions import Counts
from algos.registry import ADVANTAGES, CORRECTIONS, KL, LOSSES, Registry, RegistryError
from harness.collapse import DETECTORS
from harness.config import Config, Named, Precision, Text
from harness.errors import UserError
from harness.models import device
from harness.rollouts import ENGINES
from harness.rollouts.architecture import describe
from harness.train.warmstart import build_task, policy_config

PROVIDED = {"lengths", "greedy"}
"""What a run has for an advantage estimator beyond the rewards."""


def check(config: Config) -> None:
    """What needs torch to be checked: that each plug-in exists, takes the parameters given and accepts their values.

    Raises UserError; a plug-in that exists but fails to load raises RegistryError, for its own traceback to be seen.
    """
    try:
        objective = build_objective(config)
        check_combination(config.correction, config.proximal, LOSSES[config.loss.name].anchored)
        _try_out(objective)
        build_advantage(config)
        for make in build_detectors(config).values():
            make()
        _check_model(config)
    except RegistryError as error:
        if error.__cause__ is not None:
            raise
        raise UserError(str(error)) from None
    except (ValueError, TypeError) as error:
        raise UserError(f"{error}") from None
    _check_scoring(config, objective)
    if config.proximal == "rollout" and not objective.anchored:
        raise UserError(f"proximal=rollout has no effect: loss {config.loss.name} reads no anchor; set proximal=old")


def _check_model(config: Config) -> None:
    """That actor, engine and the trainer's own sampler compute this model in their precisions here, and that answers fit."""
    if config.actor.dtype == "fp16" and device().type == "cpu":
        raise UserError("actor.dtype=fp16: DeepSpeed trains in it on a GPU only; use bf16 or fp32")
    shape = policy_config(config)
    build_engine(config).func.check(shape, config.rollout.precision, config.rollout.kv_cache)
    if needs_own_sampler(config):
        try:
            describe(shape)
        except UserError as error:
            raise UserError(
                f"actor.scoring=exact, evaluation.policy=own, .probe and kl need the trainer's own policy as a local engine "
                f"({error}); set actor.scoring=forward evaluation.policy=rollout kl=none and no probe"
            ) from None
    by_turn = [f"{key}={level}" for key, level in config.correction.levels.items() if level.startswith("segment")]
    if not hasattr(build_task(config), "segments") and by_turn:
        raise UserError(f"correction.{by_turn[0]}: task={config.task.name} has no turns; use level=sequence or geometric")
    task, context = config.task, shape.max_position_embeddings
    if isinstance(task, Text) and task.max_prompt + task.answer_length > context:
        raise UserError(
            f"task.max_prompt + task.answer_length: {task.max_prompt + task.answer_length} tokens exceed the "
            f"model's context of {context}; lower one of them"
        )


def needs_own_sampler(config: Config) -> bool:
    """Whether the trainer's own policy is sampled from or scored along a sampling path."""
    local = config.actor.scoring == "exact" or config.evaluation.policy == "own" or bool(config.evaluation.probe)
    return local or (config.kl.name is not None and config.kl.reference == "start")


def own_precision(config: Config) -> Precision:
    """The precision of the trainer's own policy."""
    return Precision(name=config.actor.dtype, compute=config.actor.dtype, weights=None, activations=None)


def _check_scoring(config: Config, objective: Objective) -> None:
    """actor.scoring=none saves the forward pass of π_old, and of the correction: nothing may need either of the mini-batch."""
    correction = config.correction
    needs = {
        f"loss={config.loss.name} and proximal={config.proximal} with kl={config.kl.name or 'none'} and "
        f"correction.ratio={correction.ratio}": objective.reads_old,
        "correction.normalize=batch": correction.normalize == "batch",
        "correction.denominator=kept": correction.denominator == "kept",
        "a plug-in under correction.reject": any(isinstance(filter_, Plugin) for filter_ in correction.reject.values()),
    }
    if config.actor.scoring == "none" and any(needs.values()):
        reader = next(name for name, reads in needs.items() if reads)
        raise UserError(f"actor.scoring=none: {reader} reads it; use actor.scoring=exact, or forward")


def _try_out(objective: Objective) -> None:
    """Correction and loss on one token: they raise ValueError on what they cannot take."""
    one, mask = torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool)
    for name, filter_ in objective.correction.reject.items():
        if isinstance(filter_, Plugin):
            bind(CORRECTIONS[filter_.function], f"correction.reject.{name}.params", filter_.params)
    corrected = objective.corrected(one, one, mask, one, segments=torch.zeros(1, 1, dtype=torch.long))
    selected = objective.select(one, one, one, mask)
    objective(one, one, one, one, mask, corrected, Counts.of(mask, torch.zeros(1, dtype=torch.long)), selected, one)


def build_objective(config: Config) -> Objective:
    """loss x correction x proximal x reduction of a config. Raises UserError on a loss that is not decorated."""
    loss = bound(LOSSES, "loss", config.loss)
    if not hasattr(loss.func, "anchored"):
        raise UserError(f"loss.name={config.loss.name}: does not say whether it is anchored; decorate it with @loss(anchored=…)")
    kl = None if config.kl.name is None else KL[config.kl.name]
    return Objective(loss, config.correction, config.proximal, config.reduce.mode, config.reduce.norm, kl, config.kl.coef)


def build_advantage(config: Config) -> functools.partial:
    """The advantage estimator of a config.

    Raises UserError if it needs an input that a run does not have, or does not say what it needs.
    """
    needs = getattr(ADVANTAGES[config.advantage.name], "needs", None)
    if needs is None:
        raise UserError(f"advantage.name={config.advantage.name}: does not say what it needs; decorate it with @advantage()")
    if missing := set(needs) - PROVIDED:
        raise UserError(f"advantage={config.advantage.name}: needs {', '.join(sorted(missing))}, which a run does not have")
    return bound(ADVANTAGES, "advantage", config.advantage, provided=(*needs, "kept"))


def build_engine(config: Config) -> functools.partial:
    """The rollout engine of a config with its own parameters bound, see RolloutEngine."""
    provided = ("kv_cache", "temperature", "top_p", "top_k", "stop")
    return bound(ENGINES, "rollout.engine", config.rollout.engine, provided=provided)


def build_detectors(config: Config) -> dict[str, functools.partial]:
    """The collapse detectors of a config, each to be made with no argument."""
    return {name: bind(DETECTORS[name], f"collapse.detectors.{name}", p) for name, p in config.collapse.detectors.items()}


def bound(registry: Registry, key: str, named: Named, provided: tuple[str, ...] = ()) -> functools.partial:
    """A plug-in with its parameters bound. Raises UserError naming a parameter that it does not take or misses."""
    return bind(registry[named.name], key, named.params, provided)


def _annotations(plugin) -> dict[str, Any]:
    """Parameters by name with their types; nothing where a plug-in names types that only a type checker sees."""
    try:
        return get_type_hints(plugin.__init__ if inspect.isclass(plugin) else plugin, include_extras=True)
    except NameError:
        return {}


def bind(plugin, key: str, params: dict, provided: tuple[str, ...] = ()) -> functools.partial:
    """`plugin` with `params` as its keyword-only parameters, but for those `provided` by the run later.

    Raises UserError on a name that it does not take, one that it misses, or a value that is not of the annotated type.
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
        try:
            TypeAdapter(types.get(name, Any)).validate_python(value)
        except ValidationError as error:
            raise UserError(f"{key}.{name}={value}: {error.errors()[0]['msg']}") from None
    return functools.partial(plugin, **params)
