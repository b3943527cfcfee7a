"""Checks of a config that need torch: whether its plug-ins, its model and its data can be used together on this machine."""

from __future__ import annotations

import os
import shutil

import torch
from transformers import PretrainedConfig

from algos.batch import Batch
from algos.corrections.apply import correct
from algos.corrections.spec import Plugin, check_combination
from algos.objective import Objective
from algos.reductions import Counts
from algos.registry import CORRECTIONS, LOSSES, RegistryError
from harness.build import (
    Plan,
    bind,
    build_advantage,
    build_detectors,
    build_engine,
    build_objective,
    build_task,
    has_critic,
    needs_own_sampler,
)
from harness.config import TEXT, Config, PrecisionConfig, ToolsConfig
from harness.errors import UserError
from harness.models import device, policy_config
from harness.rollouts import ENGINES
from harness.rollouts.architecture import architecture_of, expert_count
from harness.rollouts.local import LocalEngine
from harness.routing import REPLAYS, check_routing
from harness.tasks import EnvironmentTask, Task, TurnTask
from harness.train.warmstart import most_held_out

Tasks = dict[str, tuple[Task, PretrainedConfig]]
"""Built tasks with the transformers configs of their policies, by the sections `task` and `model` of a config as JSON."""


def check(config: Config, tasks: Tasks | None = None) -> Plan:
    """Refuse a config that no run could use, before anything is launched. Returns the parts of the run built for the checks.

    tasks: tasks built so far, shared by the configs of a grid, so that equal data is tokenised once. Raises UserError naming
    the key, or RegistryError with the traceback of a plug-in that fails to load.
    """
    try:
        return _checked(config, {} if tasks is None else tasks)
    except RegistryError as error:
        if error.__cause__ is not None:
            raise
        raise UserError(str(error)) from None
    except ValueError as error:
        raise UserError(str(error)) from None


def _checked(config: Config, tasks: Tasks) -> Plan:
    """Check a config and return the parts of its run. Those that need no data are built first, so their errors come at once."""
    objective = build_objective(config)
    check_combination(config.correction, config.proximal, LOSSES[config.loss.name].anchored)
    _try_out(objective)
    advantage, critic, detectors = build_advantage(config), has_critic(config), build_detectors(config)
    for make in detectors.values():
        make()
    if config.proximal == "rollout" and not objective.anchored:
        raise UserError(f"proximal=rollout has no effect: loss {config.loss.name} reads no anchor; set proximal=old")
    _check_scoring(config, objective)
    if config.actor.dtype == "fp16" and device().type == "cpu":
        raise UserError("actor.dtype=fp16: DeepSpeed trains in it on a GPU only; use bf16 or fp32")
    task, shape = _built(config, tasks)
    if isinstance(task, EnvironmentTask):
        _check_environment(config)
    _check_overlong(config, bool(task.stop), task.answer_length)
    engine = build_engine(config, shape, task)
    _check_model(config, shape)
    _check_lengths(config, task, shape)
    return Plan(config, task, shape, objective, advantage, engine, detectors, critic)


def _try_out(objective: Objective) -> None:
    """Run an objective's correction and loss on one token. They raise ValueError on invalid parameters."""
    one, mask = torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool)
    for name, filter_ in objective.correction.reject.items():
        if isinstance(filter_, Plugin):
            key, inputs = f"correction.reject.{name}.params", ("log_ratio", "mask")
            bind(CORRECTIONS[filter_.function], key, filter_.params, inputs=inputs)
    turn, prompt = torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, dtype=torch.long)
    batch = Batch(one, mask, one, one, turn, one, prompt)
    corrected = correct(batch, objective.correction)
    objective(one, objective.select(batch, corrected.counted), corrected, Counts.of(mask, prompt), one)


def _check_scoring(config: Config, objective: Objective) -> None:
    """Raise UserError if actor.scoring=none although a setting needs π_old or a correction needs the whole batch."""
    correction = config.correction
    needs = {
        f"loss={config.loss.name} and proximal={config.proximal} with kl={config.kl.name or 'none'} and "
        f"correction.ratio={correction.ratio}": objective.reads_old,
        "correction.normalize=batch": correction.normalize == "batch",
        "correction.denominator=kept": correction.denominator == "kept",
        "kl.place=reward": config.kl.place == "reward",
        "a plug-in under correction.reject": any(isinstance(filter_, Plugin) for filter_ in correction.reject.values()),
    }
    needs[f"actor.ess_scaling={config.actor.ess_scaling}"] = config.actor.ess_scaling != "none"
    if config.actor.scoring == "none" and any(needs.values()):
        reader = next(name for name, reads in needs.items() if reads)
        raise UserError(f"actor.scoring=none: {reader} reads it; use actor.scoring=exact, or forward")


def _built(config: Config, tasks: Tasks) -> tuple[Task, PretrainedConfig]:
    """Return a config's task and its policy's transformers config, from `tasks` or new. Raises UserError on unusable data."""
    sections = config.model_dump_json(include={"task", "model"})
    if sections not in tasks:
        task = build_task(config)
        tasks[sections] = task, policy_config(config.model, task)
    return tasks[sections]


def _check_persistence(config: Config) -> None:
    rollout = config.rollout
    if config.diagnostics.persistence.every and rollout.engine.name == "vllm" and rollout.temperature != 1:
        raise UserError(
            f"diagnostics.persistence with rollout.temperature={rollout.temperature:g}: vLLM scores given responses at "
            "temperature 1 alone; set rollout.temperature=1 or diagnostics.persistence.every=null"
        )


def _check_held_out(config: Config, most: int) -> None:
    """Raise UserError if more than `most` held-out prompts are asked for. A warm start that drops prompts may leave fewer."""
    persistence = config.diagnostics.persistence
    wanted = {"evaluation.prompts": config.evaluation.prompts}
    if persistence.every is not None:
        wanted["diagnostics.persistence.responses"] = persistence.responses
    for key, number in wanted.items():
        if number > most:
            raise UserError(f"{key}={number}: at most {most} prompts of task={config.task.name} are held out; ask for no more")


def _check_sampling_mask(config: Config, refusal: str | None, vocabulary: int) -> None:
    """Raise UserError if replayed sampling masks have no effect, or if the engine records none. refusal: why it does not."""
    rollout = config.rollout
    if not rollout.replay_sampling_mask:
        return
    if refusal is not None:
        raise UserError(f"rollout.replay_sampling_mask=true: rollout.engine={rollout.engine.name}: {refusal}, or set it to false")
    if rollout.top_p == 1 and rollout.top_k >= vocabulary:
        raise UserError(
            f"rollout.replay_sampling_mask=true has no effect: rollout.top_k={rollout.top_k} leaves all {vocabulary} tokens; "
            "lower it, or set rollout.replay_sampling_mask=false"
        )


def _check_partial(config: Config, answer_length: int) -> None:
    part = config.rollout.partial_tokens
    if part is not None and part >= answer_length:
        raise UserError(
            f"rollout.partial_tokens={part} has no effect: responses of task={config.task.name} have at most {answer_length} "
            "tokens; lower it, or set it to null"
        )


def _check_segments(config: Config, has_turns: bool) -> None:
    read = [f"{key}={level}" for key, level in config.correction.levels.items() if level.startswith("segment")]
    if config.segments == "version" and not read:
        raise UserError(
            "segments=version has no effect: no level of correction is segment or segment_geometric; use turn, or set "
            "correction.weight.level=segment"
        )
    if config.segments == "version" and config.rollout.partial_tokens is None:
        raise UserError(
            "segments=version: each response is of one version; set rollout.partial_tokens, or use level=sequence or geometric"
        )
    if config.segments == "turn" and read and not has_turns:
        raise UserError(f"correction.{read[0]}: task={config.task.name} has no turns; use level=sequence or geometric")


def _check_overlong(config: Config, can_end: bool, answer_length: int) -> None:
    buffer = config.overlong.buffer
    if buffer is not None and not can_end:
        raise UserError(
            f"overlong.buffer={buffer} has no effect: each response of task={config.task.name} has {answer_length} tokens; "
            "set overlong.buffer=null"
        )
    if buffer is not None and buffer > answer_length:
        raise UserError(f"overlong.buffer={buffer}: exceeds task.answer_length={answer_length}; lower it")


def _check_environment(config: Config) -> None:
    """Raise UserError on settings that do not work with answers of several turns, each of which is a request to the engine."""
    name, parallel = config.task.name, config.rollout.engine.params.get("tensor_parallel", 1)
    if config.overlong.buffer is not None:
        raise UserError(
            f"overlong.buffer={config.overlong.buffer}: task={name} bounds each turn, not the whole response; set "
            "overlong.buffer=null"
        )
    if (part := config.rollout.partial_tokens) is not None:
        raise UserError(f"rollout.partial_tokens={part}: task={name} samples whole responses, turn by turn; set null")
    if config.rollout.replay_sampling_mask:
        raise UserError(f"rollout.replay_sampling_mask=true: task={name} records no sampling masks of its turns; set false")
    if REPLAYS[config.routing.replay].source == "engine":
        raise UserError(f"routing.replay={config.routing.replay}: task={name} records no routes of its turns; set none or r2")
    if parallel != 1:
        raise UserError(
            f"rollout.engine.tensor_parallel={parallel}: ranks that share an engine ask for as many rows, and in task={name} "
            "as many as have a further turn; set 1"
        )


def _check_cast(precision: PrecisionConfig, shape: PretrainedConfig) -> None:
    """Raise UserError unless the training forward pass can cast to `precision` as the embedded engine does."""
    try:
        LocalEngine.check(shape, precision, "compute")
    except UserError as error:
        raise UserError(f"actor.precision={precision.name}, which casts as that engine does: {error}") from None


def _check_compile(shape: PretrainedConfig) -> None:
    """Raise UserError if torch.compile lacks a compiler here, or the model has routers, whose hooks would be compiled away."""
    if expert_count(shape):
        raise UserError("actor.compile=true: routes of a mixture of experts are recorded between its operations; set false")
    compiler = os.environ.get("CXX", "g++")
    if device().type == "cpu" and shutil.which(compiler) is None:  # on a GPU torch compiles to Triton
        raise UserError(f"actor.compile=true: the C++ compiler {compiler} was not found; install it, set CXX, or set false")


def _check_model(config: Config, shape: PretrainedConfig) -> None:
    """Raise UserError unless actor, rollout engine and the trainer's own sampler can compute the model on this machine."""
    rollout, engine = config.rollout, ENGINES[config.rollout.engine.name]
    engine.check(shape, rollout.precision, rollout.kv_cache, **rollout.engine.params)
    if config.actor.precision is not None:
        _check_cast(config.actor.precision, shape)
    if config.actor.compile:
        _check_compile(shape)
    _check_persistence(config)
    check_routing(config, expert_count(shape), engine.reports_routes())
    _check_sampling_mask(config, engine.support_refusal(rollout.top_k), shape.vocab_size)
    if needs_own_sampler(config):
        try:
            architecture_of(shape)
        except UserError as error:
            raise UserError(
                f"actor.scoring=exact, evaluation.policy other than rollout and .probe need the trainer's own policy as a "
                f"local engine ({error}); set actor.scoring=forward evaluation.policy=rollout and no probe"
            ) from None


def _check_lengths(config: Config, task: Task, shape: PretrainedConfig) -> None:
    """Raise UserError on partial rollouts or segments without effect, on a too short context, or on too few held-out prompts."""
    _check_partial(config, task.answer_length)
    _check_segments(config, isinstance(task, TurnTask | EnvironmentTask))
    section, context = config.task, shape.max_position_embeddings
    if isinstance(section, TEXT) and section.max_prompt + task.answer_length > context:
        length = "the response of task.turns and task.turn_length" if isinstance(section, ToolsConfig) else "task.answer_length"
        raise UserError(
            f"task.max_prompt + {length}: {section.max_prompt + task.answer_length} tokens exceed the model's context of "
            f"{context}; lower one of them"
        )
    _check_held_out(config, most_held_out(task))
