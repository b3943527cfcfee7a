"""Builds the plug-ins that a config names, with their parameters checked and bound."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from transformers import PretrainedConfig

from algos.objective import Objective
from algos.parameters import check
from algos.registry import ADVANTAGES, KL, LOSSES, Registry
from harness.collapse import DETECTORS
from harness.config import Config, HubConfig, PrecisionConfig
from harness.errors import UserError
from harness.models import hub_tokenizer
from harness.rollouts import ENGINES, RolloutEngine, Sampling
from harness.rollouts.local import LocalEngine
from harness.tasks import TASKS, Task, stops

BY_TOKEN = {"mask", "values"}
"""Inputs of advantage estimators by token. An estimator that takes one of them maps rewards [B, T] to advantages [B, T].
mask: the tokens that the policy wrote, [B, T] bool. values: a critic's V, [B, T]."""

PROVIDED = {"lengths", "greedy"} | BY_TOKEN
"""Inputs that a run can give an advantage estimator, besides the rewards. `algos.advantages` describes lengths and greedy."""


class Plan(NamedTuple):
    """Everything that a run builds from its config: task, policy's shape, objective, engine and detectors, all checked.

    shape: the transformers config of the policy. advantage: the estimator with its parameters bound. engine: makes the rollout
    engine. detectors: make the collapse detectors, by name. has_critic: whether the run trains a critic, which learns values.
    """

    config: Config
    task: Task
    shape: PretrainedConfig
    objective: Objective
    advantage: functools.partial
    engine: Callable[[], RolloutEngine]
    detectors: dict[str, functools.partial]
    has_critic: bool


def build_objective(config: Config) -> Objective:
    """Build the objective: loss, correction, proximal policy, reduction, KL, entropy. Raises UserError if a loss lacks @loss."""
    anchored = "whether it is anchored; decorate it with @loss(anchored=…)"
    _check_marked(LOSSES, "loss.name", config.loss.name, "anchored", anchored)
    loss, kl = bind(LOSSES[config.loss.name], "loss", config.loss.params), None
    if config.kl.name is not None and config.kl.place == "loss":
        inputs = ("logp", "logp_ref", "mask", "logp_prox")
        kl = bind(KL[config.kl.name], f"kl.name={config.kl.name}", {}, inputs=inputs).func
    return Objective(
        loss, config.correction, config.proximal, config.reduce.mode, config.reduce.norm, kl, config.kl.coef, config.entropy_coeff
    )


def build_advantage(config: Config) -> functools.partial:
    """Return a config's advantage estimator with its parameters bound. Raises UserError if the run lacks an input it needs."""
    needs = "what it needs; decorate it with @advantage()"
    _check_marked(ADVANTAGES, "advantage.name", config.advantage.name, "needs", needs)
    estimator = ADVANTAGES[config.advantage.name]
    if missing := set(estimator.needs) - PROVIDED:
        raise UserError(f"advantage={config.advantage.name}: needs {', '.join(sorted(missing))}, which a run does not have")
    bound = bind(estimator, "advantage", config.advantage.params, provided=estimator.needs)
    if config.rollout.group_size == 1 and not BY_TOKEN & set(estimator.needs):
        _check_alone(bound, estimator.needs, config.advantage.name)
    return bound


def _check_alone(estimator: functools.partial, needs: Sequence[str], name: str) -> None:
    """Raise UserError if an estimator gives advantage 0 to the only response to a prompt, whatever its reward."""
    rewards = torch.tensor([[1.0], [0.0]])
    inputs = {"lengths": torch.ones(2, 1, dtype=torch.long), "greedy": torch.zeros(2)}
    if not estimator(rewards, **{key: inputs[key] for key in needs}).any():
        raise UserError(
            f"rollout.group_size=1: advantage={name} compares the responses to a prompt, and is 0 of one alone; set 2 or "
            "more, or advantage=gae, reinforce, reinforce_pp or remax"
        )


def has_critic(config: Config) -> bool:
    """Whether the run trains a critic. Raises UserError if the config section `critic` contradicts the advantage estimator."""
    name, lr = config.advantage.name, config.critic.lr
    reads = "values" in ADVANTAGES[name].needs
    if reads and lr is None:
        raise UserError(f"critic.lr is missing: advantage={name} needs the values of a critic; set critic=default")
    if lr is not None and not reads:
        raise UserError(f"critic.lr={lr:g} has no effect: advantage={name} reads no values; set critic=none or advantage=gae")
    return reads


def build_engine(config: Config, shape: PretrainedConfig, task: Task) -> functools.partial:
    """Return a function that makes a config's rollout engine. Raises UserError if rollout.engine.name names no engine class."""
    r, named = config.rollout, config.rollout.engine
    engine = ENGINES[named.name]
    if not (inspect.isclass(engine) and issubclass(engine, RolloutEngine)):
        raise UserError(f"rollout.engine.name={named.name}: no class derived from harness.rollouts.RolloutEngine")
    bound = bind(engine, "rollout.engine", named.params, inputs=("shape", "precision", "sampling"))
    sampling = Sampling(
        kv_cache=r.kv_cache,
        temperature=r.temperature,
        top_p=r.top_p,
        top_k=r.top_k,
        stop=stops(task),
        record_support=r.replay_sampling_mask,
    )
    seed = {"noise_seed": config.seed} if named.params.get("noise_seed", 0) is None else {}
    return functools.partial(bound, shape, r.precision, sampling, **seed)


def local_engine(plan: Plan, precision: PrecisionConfig, *, noise: float = 0.0, **truncation) -> LocalEngine:
    """Make an embedded engine for a run's policy. noise: size of noise on the weights. truncation: fields of `Sampling`."""
    sampling = Sampling(temperature=plan.config.rollout.temperature, stop=stops(plan.task), **truncation)
    return LocalEngine(plan.shape, precision, sampling, noise=noise)


def build_task(config: Config) -> Task:
    """Build the task of a config. Raises UserError on data that cannot be used."""
    tokenizer = hub_tokenizer(config.model) if isinstance(config.model, HubConfig) else None
    make = bind(TASKS[config.task.name], f"task.name={config.task.name}", {}, inputs=("config", "tokenizer"))
    return make(config.task, tokenizer)


def build_detectors(config: Config) -> dict[str, functools.partial]:
    """Map the name of each collapse detector of a config to a function without arguments that makes the detector."""
    detectors = config.collapse.detectors
    for name in detectors:
        _check_marked(DETECTORS, "collapse.detectors", name, "role", "its role; see harness/collapse")
    return {name: bind(DETECTORS[name], f"collapse.detectors.{name}", params) for name, params in detectors.items()}


def bind(
    plugin: Callable, key: str, params: dict, *, inputs: Sequence[str] | None = None, provided: Sequence[str] = ()
) -> functools.partial:
    """Bind keyword parameters `params` to `plugin`. Raises UserError unless it takes them and the positional `inputs`."""
    try:
        check(key, plugin, params, inputs=inputs, provided=provided)
    except ValueError as error:
        raise UserError(str(error)) from None
    return functools.partial(plugin, **params)


def _check_marked(registry: Registry, key: str, name: str, mark: str, what: str) -> None:
    """Raise UserError if a plug-in lacks the attribute `mark`, which a run reads. what: the mark's meaning, for the message."""
    if not hasattr(registry[name], mark):
        raise UserError(f"{key}={name}: does not say {what}")


def needs_own_sampler(config: Config) -> bool:
    """Whether the run needs the trainer's own policy as a sampler, as exact scoring, evaluation and probes do."""
    return config.actor.scoring == "exact" or config.evaluation.policy != "rollout" or bool(config.evaluation.probe)


def needs_frozen_policy(config: Config) -> bool:
    """Whether the training forward scores the reference of a KL term. Under exact scoring an embedded engine does."""
    return config.kl.name is not None and config.actor.scoring != "exact"


def own_precision(config: Config) -> PrecisionConfig:
    """The precision in which the trainer's policy is computed: actor.precision, or by default actor.dtype unquantised."""
    if config.actor.precision is not None:
        return config.actor.precision
    return PrecisionConfig(name=config.actor.dtype, compute=config.actor.dtype, weights=None, activations=None)


def samples_as_trainer(config: Config) -> bool:
    """Whether rollouts sample exactly the trainer's policy: default local engine, same precision and weights, all tokens."""
    if config.actor.lora is not None and config.actor.lora.sync != "apart":
        return False
    r, own = config.rollout, own_precision(config)
    same = r.precision.model_copy(update={"name": own.name}) == own and (r.staleness, r.partial_tokens) == (0, None)
    whole = (r.kv_cache, r.top_p, r.top_k) == ("compute", 1.0, 0)
    parameters = inspect.signature(ENGINES["local"]).parameters
    decisive = parameters.keys() - {"noise_seed"}  # it matters only with noise
    plain = all(parameters[name].default == value for name, value in r.engine.params.items() if name in decisive)
    return r.engine.name == "local" and same and whole and plain
