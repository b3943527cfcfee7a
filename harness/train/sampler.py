"""Prompts -> responses: which prompts a step takes, who answers them, and what the answers are worth.

On several ranks (`ranks.py`) each samples and rewards its share of the rows. Every rank then holds the responses of all.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.build import Plan
from harness.models import device
from harness.rollouts import Rollout, RolloutEngine
from harness.rollouts.check_weights import SyncCheck
from harness.rollouts.turns import respond
from harness.routing import REPLAYS
from harness.seeding import generator
from harness.train.clock import Clock
from harness.train.data.responses import Responses, describe
from harness.train.model.actor import Actor
from harness.train.ranks import join

SYNC_PROMPTS, SYNC_TOKENS = 4, 16
"""Prompts, and tokens of a response, by which an engine is asked whether it holds the new weights."""


class Sampler:
    """Draws prompts, samples responses to them with the rollout engine of the run, and rewards them.

    Life cycle: for each step `load_weights`, `sample` and `rest`. An option of a run wraps a sampler (`harness/train/options/`).
    The methods that take an engine serve whoever looks at a policy outside of training.

    prompts: the pool [N, P] that is trained on. version: of the weights that were loaded last.
    """

    def __init__(self, plan: Plan, actor: Actor, prompts: Tensor):
        self.config, self.task, self.actor, self.prompts = plan.config, plan.task, actor, prompts.to(device())
        self.ranks, self.clock, self.version = join(), Clock(), 0
        self.engine: RolloutEngine = plan.engine()
        shown = self.prompts[:SYNC_PROMPTS]
        length = min(SYNC_TOKENS, self.task.answer_length)
        self.sync_check = SyncCheck(shown, torch.rand(len(shown), length, generator=generator(self.config.seed, "probe")))

    def load_weights(self, version: int) -> dict[str, float]:
        """Give the actor's weights to the engine.

        Where another library loads them, they are verified: UserError if the engine holds others.
        """
        self.version = version
        with self.clock.phase("sync"):
            self.engine.load_weights(self.actor.weights(), version)
        if self.engine.tolerance is None:
            return {}
        with self.clock.phase("verify"):
            difference = self.sync_check(self.engine, self.actor)
        return {} if difference is None else {"rollout/sync_difference": difference}

    def draw_prompts(self, number: int) -> Tensor:
        """The prompts [B, P] of a draw, one row per response: the pool is walked in a new order each time round.

        number: of the draw, which is the step where each step has one.
        """
        n, per_draw = len(self.prompts), self.config.rollout.prompts
        places = range(number * per_draw, (number + 1) * per_draw)
        orders = {e: torch.randperm(n, generator=generator(self.config.seed, "prompts", e)) for e in {p // n for p in places}}
        chosen = self.prompts[torch.stack([orders[p // n][p % n] for p in places])]
        return chosen.repeat_interleave(self.config.rollout.group_size, dim=0).to(device())

    def draw_uniforms(self, number: int) -> Tensor:
        """The uniform random numbers [B, T] by which the responses of a draw are sampled."""
        rows = self.config.rollout.prompts * self.config.rollout.group_size
        return torch.rand(rows, self.task.answer_length, generator=generator(self.config.seed, "rollout", number))

    def sample(self, number: int) -> Responses:
        """The responses to the prompts of a draw, by the weights that the engine holds."""
        return self.rewarded(self.draw_prompts(number), self.gather(self.sample_share(number)))

    def sample_share(self, number: int) -> Rollout:
        """This rank's share of the responses to the prompts of a draw."""
        with self.clock.phase("generate"):
            rollout = self.generate_share(self.engine, self.draw_prompts(number), self.draw_uniforms(number))
        self.clock.sampled_tokens += int(rollout.written.sum()) * self.ranks.size
        return rollout

    def sample_by(self, engine: RolloutEngine, prompts: Tensor, uniforms: Tensor) -> Responses:
        """The responses of an engine, with the weights that it holds, to prompts [B, P] in groups of `rollout.group_size`."""
        return self.rewarded(prompts, self.generate(engine, prompts, uniforms))

    def generate(self, engine: RolloutEngine, prompts: Tensor, uniforms: Tensor) -> Rollout:
        """The responses of an engine to prompts [B, P] by uniforms [B, T], each rank sampling its share."""
        return self.gather(self.generate_share(engine, prompts, uniforms))

    def generate_share(self, engine: RolloutEngine, prompts: Tensor, uniforms: Tensor) -> Rollout:
        """This rank's share of the responses, without the weights of experts that nothing replays."""
        rollout = respond(engine, self.task, self.ranks.share(prompts), self.ranks.share(uniforms))
        return rollout if REPLAYS[self.config.routing.replay].weights else rollout._replace(expert_weights=None)

    def gather(self, rollout: Rollout) -> Rollout:
        """The responses of all ranks, from those of each. Collective."""
        parts = {name: part for name, part in rollout._asdict().items() if part is not None}
        return Rollout(**{name: self.ranks.gather(part) for name, part in parts.items()})

    def rewarded(self, prompts: Tensor, rollout: Rollout) -> Responses:
        """The responses with the rewards of the task."""
        rewards = self.reward(prompts, rollout.tokens)
        return Responses(prompts, rollout, rewards.view(-1, self.config.rollout.group_size))

    def reward(self, prompts: Tensor, tokens: Tensor) -> Tensor:
        """[B]: the task's reward of each response, each rank asking for its share."""
        own = (self.ranks.share(part).cpu().numpy() for part in (prompts, tokens))
        return self.ranks.gather(torch.from_numpy(self.task.reward(*own)).float().to(device()))

    def describe(self, responses: Responses) -> dict[str, Tensor]:
        """The metrics of a step's responses, by the version of the weights that are trained."""
        return describe(responses, self.version, self.task.stop)

    def rest(self) -> None:
        """Lend the engine's memory to the actor until the next weights."""
        self.engine.sleep()

    def state(self) -> dict[str, Tensor]:
        """Responses that wait for their step, for a checkpoint: none, unless an option samples ahead."""
        return {}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take back the tensors that `state` gave."""
