"""`faultline branch`: continue a run from a checkpoint with other config values, and report on the runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from harness.arms import flatten
from harness.collapse import DETECTORS
from harness.compose import compose
from harness.config import Config, parse
from harness.errors import UserError
from harness.routing import REPLAYS
from harness.run.folder import RunFolder
from harness.run.manifest import read_state
from harness.run.restore import Checkpoint, find, transplant
from sweeps.launch import launch
from sweeps.launchers.local import Local

FIXED = ("task", "model", "warmstart", "actor.zero_stage", "actor.dtype", "rollout.staleness", "rollout.partial_tokens",
         "collapse.detectors")  # fmt: skip
"""Beginnings of config keys that a branch cannot change, because the state in the checkpoint was made with their values."""


def branch(origin: Path, at: int | None, arms: list[str], seeds: int, noise: bool = False, trust: bool = False) -> Path:
    """Continue a run's checkpoint with its own config and with each changed one. Returns the path of a report on these runs.

    origin, at: folder of the run, and step of its checkpoint, None for the last one. seeds: number of runs with each config.
    arms: overrides of each changed config, separated by spaces, such as "correction=icepop steps=400". noise: add a config that
    samples in the trainer's precision, with synthetic noise of the same K3 as the run's rollouts. trust: allow importing code
    that the run's config names. The new runs form the sweep <sweep>-branch-<hash>-<step>. A repeated command resumes them.
    Raises UserError on an override that the checkpoint cannot take, and on a checkpoint after a collapse.
    """
    checkpoint = find(origin, at, trust=trust)
    events = read_state(checkpoint.folder).events
    if any(DETECTORS[name].role == "collapse" for name in checkpoint.config.collapse.detectors if name in events):
        raise UserError(f"{checkpoint.folder}: the run had collapsed before this checkpoint; branch from an earlier one")
    sweep = f"{checkpoint.config.run.sweep}-branch-{checkpoint.config.digest[:6]}-{checkpoint.step}"
    configs = [config for arm in ["", *arms] for config in _seeded(checkpoint, arm, seeds, sweep)]
    if noise:
        configs += _seeded(checkpoint, _noise_arm(checkpoint), seeds, sweep)
    if len({config.digest for config in configs}) < len(configs):
        raise UserError("--set: two arms are the same, or one changes nothing; an unchanged arm is always run")
    from analysis.report import report
    from harness.validate import Tasks, check

    tasks: Tasks = {}
    for config in configs:
        check(config, tasks)
    for config in configs:
        folder = RunFolder(config.path)
        with folder.claim():
            if not folder.checkpoints:
                transplant(checkpoint, folder)
    launch(configs, Local, extend=True)
    return report(configs[0].path.parent, trust=trust)


def _seeded(checkpoint: Checkpoint, arm: str, seeds: int, sweep: str) -> list[Config]:
    """Configs that continue a checkpoint, one per seed. arm: overrides separated by spaces. Raises UserError on a wrong one."""
    _check_overrides(arm)
    changed, configs = overridden(checkpoint.config, arm.split()), []
    for seed in range(seeds):
        changed["seed"], changed["run"]["sweep"] = seed, sweep
        configs.append(_accepted(checkpoint, parse(changed), arm))
    return configs


def _noise_arm(checkpoint: Checkpoint) -> str:
    from harness.build import own_precision
    from harness.run.noise import matching_noise

    noise, reached, wanted = matching_noise(checkpoint)
    print(f"the run's rollouts have K3 {wanted:.2e} at step {checkpoint.step}; noise {noise:.3g} has {reached:.2e}")
    own = f"rollout/engine=local rollout/precision={own_precision(checkpoint.config).name} rollout.kv_cache=compute"
    return f"{own} rollout.engine.noise={noise:.3g}"


def _check_overrides(overrides: str) -> None:
    for override in overrides.split():
        key, equals, _ = override.partition("=")
        if not (key and equals):
            raise UserError(f"--set {override}: write key=value, as correction=icepop")
        if key == "seed" or key.split(".")[0] == "run":
            raise UserError(f"--set {override}: branches get seeds 0, 1, ... (--seeds) and a sweep of their own; leave {key} out")


def overridden(config: Config, overrides: list[str]) -> dict[str, Any]:
    """The values of a config with overrides applied. group=option sets every key of that option, key=value a single key."""
    result = OmegaConf.create(config.model_dump(mode="json"))
    plain = flatten(compose())
    for override in overrides:
        key = override.partition("=")[0]
        try:
            composed = compose(override)
        except UserError as error:
            raise UserError(f"--set {override}: {error}") from None
        if "/" in key or OmegaConf.is_dict(OmegaConf.select(result, key)):  # a group: its whole section is replaced
            place = key.replace("/", ".")
            OmegaConf.update(result, place, OmegaConf.select(OmegaConf.create(composed), place), merge=False)
            changed = {k: v for k, v in flatten(composed).items() if plain.get(k) != v and not k.startswith(f"{place}.")}
        else:
            changed = {key: OmegaConf.select(OmegaConf.create(composed), key)}
        for name, new in changed.items():
            OmegaConf.update(result, name, new)
    overridden = OmegaConf.to_container(result)
    assert isinstance(overridden, dict)
    return {str(key): value for key, value in overridden.items()}


def _accepted(checkpoint: Checkpoint, config: Config, overrides: str) -> Config:
    before, after = (flatten(c.model_dump(mode="json")) for c in (checkpoint.config, config))
    for key in sorted(before.keys() | after.keys()):
        if key.startswith(FIXED) and before.get(key) != after.get(key):
            raise UserError(f"{overrides}: {key} cannot change on the way, the checkpoint was made with {before.get(key)}")
    if config.critic.lr is not None and checkpoint.config.critic.lr is None:
        name = config.advantage.name
        raise UserError(f"{overrides}: advantage={name} needs a critic, and the checkpoint has none; branch from a run with one")
    _check_waiting(checkpoint.config, config, overrides)
    if checkpoint.config.kl.target and config.kl.target and before["kl.coef"] != after["kl.coef"]:
        raise UserError(
            f"{overrides}: kl.coef has no effect, since the checkpoint holds the coefficient that the controller has reached; "
            "change kl.target, or set kl.target=null kl.horizon=null too"
        )
    if config.steps <= checkpoint.step:
        earlier = ", ".join(f"--at {step}" for step in RunFolder(checkpoint.folder.parents[1]).checkpoints if step < config.steps)
        remedy = f"branch from an earlier one: {earlier}" if earlier else "a larger checkpoint.keep would have kept earlier ones"
        left = f"the checkpoint is of step {checkpoint.step}, with nothing left to train"
        raise UserError(f"steps={config.steps}: {left}; {remedy}")
    return config


def _check_waiting(origin: Config, config: Config, overrides: str) -> None:
    """Raise UserError if an override needs expert routes or sampling masks that the checkpoint's queued rollouts lack."""
    waits = origin.rollout.staleness or origin.rollout.partial_tokens
    masks = config.rollout.replay_sampling_mask and not origin.rollout.replay_sampling_mask
    if waits and masks:
        raise UserError(
            f"{overrides}: rollout.replay_sampling_mask=true reads what the rollouts that wait in the checkpoint lack, sampled "
            "without it; set it to false"
        )
    replay, kept = REPLAYS[config.routing.replay], REPLAYS[origin.routing.replay]
    other = config.rollout.engine.name != origin.rollout.engine.name
    if waits and replay.source == "engine" and (other or (replay.weights and not kept.weights)):
        raise UserError(
            f"{overrides}: routing.replay={config.routing.replay} reads what the rollouts that wait in the "
            f"checkpoint may lack, of rollout.engine={origin.rollout.engine.name} and "
            f"routing.replay={origin.routing.replay}; keep both"
        )
