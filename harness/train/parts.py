"""Builds the parts of a training step, such as the sampler, which is wrapped in the options that the config asks for."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple, cast

from torch import Tensor

from harness.build import Plan, needs_frozen_policy
from harness.models import device
from harness.train.assemble import Assembler
from harness.train.critic import Critic
from harness.train.model.actor import DeepSpeedActor
from harness.train.model.frozen import FrozenPolicy, placed
from harness.train.options.ahead import SampledAhead
from harness.train.options.dynamic_sampling import DynamicSampling
from harness.train.options.greedy import GREEDY, GreedyBaseline
from harness.train.options.overlong import Overlong
from harness.train.options.partial import PartialRollouts
from harness.train.options.sampling_masks import SamplingMasks, sampling_masks
from harness.train.sampler import Sampler
from harness.train.scorer import Scorer
from harness.train.warmstart import start


class Parts(NamedTuple):
    """The parts of a training step around one actor. critic: None if the run trains none. held_out: held-out prompts [N, P]."""

    actor: DeepSpeedActor
    critic: Critic | None
    sampler: Sampler
    scorer: Scorer
    assemble: Assembler
    held_out: Tensor


def build_parts(plan: Plan) -> Parts:
    """Build actor, critic, sampler, scorer and assembler of a run. The actor starts pretrained or from the warm start."""
    config = plan.config
    net, prompts, held_out = start(config, plan.task)
    critic_net = copy.deepcopy(net) if plan.has_critic else None
    frozen = None
    if needs_frozen_policy(config):
        net = placed(net, config.actor)  # first, so that host memory holds one model in fp32
        frozen = FrozenPolicy(copy.deepcopy(net), config.actor, config.rollout.temperature)
    actor = DeepSpeedActor(net, config.actor, temperature=config.rollout.temperature, seed=config.seed)
    critic = Critic(critic_net, config) if critic_net is not None else None
    sampler = _with_options(Sampler(plan, actor, prompts), plan)
    masks = {"support": sampling_masks} if config.rollout.replay_sampling_mask else {}
    scorer = Scorer(plan, actor, sampler.engine, frozen, **masks)
    overlong, length = config.overlong, plan.task.answer_length
    shaping = None if overlong.buffer is None else Overlong(length, overlong.buffer, overlong.penalty)
    return Parts(actor, critic, sampler, scorer, Assembler(plan, critic, shaping), held_out.to(device()))


def _with_options(sampler: Sampler, plan: Plan) -> Sampler:
    """Wrap a sampler in the options of the config. Each option has all methods of the sampler that it wraps."""
    rollout, wrapped = plan.config.rollout, cast(Any, sampler)
    if rollout.partial_tokens is not None:
        wrapped = PartialRollouts(wrapped, rollout.partial_tokens)
    elif rollout.staleness:
        wrapped = SampledAhead(wrapped)
    if GREEDY in plan.advantage.func.needs:  # type: ignore[attr-defined]  # a function's attributes have no type
        wrapped = GreedyBaseline(wrapped)
    if rollout.filter.max_rounds is not None:
        wrapped = DynamicSampling(wrapped, rollout.filter.max_rounds)
    if rollout.replay_sampling_mask:
        wrapped = SamplingMasks(wrapped)
    return wrapped
