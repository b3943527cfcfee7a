"""Sampling of a step's responses: which prompts it takes, which engine answers them, and how the answers are rewarded.

Each rank (`ranks.py`) samples and rewards its share of the rows. Every rank then holds the responses of all ranks.
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
"""Number of prompts, and of tokens per response, in the check that an engine holds the new weights."""


class Sampler:
    """Draws prompts, samples responses to them with the rollout engine of the run, and rewards them.

    Life cycle: for each step `load_weights`, `sample` and `rest`. An option of a run wraps a sampler
    (`harness/train/options/`). Methods with an argument `engine` serve evaluation and other uses outside of training.

    prompts: pool [N, P] of training prompts. `version` is the version of the weights that were loaded last.
    """

    def __init__(self, plan: Plan, actor: Actor, prompts: Tensor):
        self.config, self.task, self.actor, self.prompts = plan.config, plan.task, actor, prompts.to(device())
        self.ranks, self.clock, self.version = join(), Clock(), 0
        self.engine: RolloutEngine = plan.engine()
        shown = self.prompts[:SYNC_PROMPTS]
        length = min(SYNC_TOKENS, self.task.answer_length)
        self.sync_check = SyncCheck(shown, torch.rand(len(shown), length, generator=generator(self.config.seed, "probe")))

    def load_weights(self, version: int) -> dict[str, float]:
        """Load the actor's weights, number `version`, into the engine. Returns metrics of a check, which may raise UserError."""
        self.version = version
        with self.clock.phase("sync"):
            self.engine.load_weights(self.actor.synced_weights(), version)
        if self.engine.tolerance is None:
            return {}
        with self.clock.phase("verify"):
            difference = self.sync_check(self.engine, self.actor)
        return {} if difference is None else {"rollout/sync_difference": difference}

    def draw_prompts(self, number: int) -> Tensor:
        """Training prompts [B, P] of batch `number`, one row per response. Each pass over the pool has a new random order."""
        n, per_draw = len(self.prompts), self.config.rollout.prompts
        places = range(number * per_draw, (number + 1) * per_draw)
        orders = {e: torch.randperm(n, generator=generator(self.config.seed, "prompts", e)) for e in {p // n for p in places}}
        chosen = self.prompts[torch.stack([orders[p // n][p % n] for p in places])]
        return chosen.repeat_interleave(self.config.rollout.group_size, dim=0).to(device())

    def draw_uniforms(self, number: int) -> Tensor:
        """Uniform random numbers [B, T] that decide the responses to the prompts `draw_prompts(number)`."""
        rows = self.config.rollout.prompts * self.config.rollout.group_size
        return torch.rand(rows, self.task.answer_length, generator=generator(self.config.seed, "rollout", number))

    def sample(self, number: int) -> Responses:
        """Sample responses to the prompts of rollout `number` (from 0 on) with the engine's present weights, and reward them."""
        return self.rewarded(self.draw_prompts(number), self.gather(self.sample_share(number)))

    def sample_share(self, number: int) -> Rollout:
        """Sample this rank's share of the responses to the prompts of rollout `number`."""
        with self.clock.phase("generate"):
            rollout = self.generate_share(self.engine, self.draw_prompts(number), self.draw_uniforms(number))
        self.clock.sampled_tokens += int(rollout.written.sum()) * self.ranks.size
        return rollout

    def sample_by(self, engine: RolloutEngine, prompts: Tensor, uniforms: Tensor) -> Responses:
        """Sample and reward responses of `engine` to prompts [B, P] by random numbers [B, T].

        Each prompt fills rollout.group_size rows, one per response.
        """
        return self.rewarded(prompts, self.generate(engine, prompts, uniforms))

    def generate(self, engine: RolloutEngine, prompts: Tensor, uniforms: Tensor) -> Rollout:
        """Sample an engine's responses to prompts [B, P] by random numbers [B, T]. Each rank samples its share."""
        return self.gather(self.generate_share(engine, prompts, uniforms))

    def generate_share(self, engine: RolloutEngine, prompts: Tensor, uniforms: Tensor) -> Rollout:
        """Sample this rank's share of an engine's responses to prompts [B, P] by random numbers [B, T]."""
        return self.replayable(respond(engine, self.task, self.ranks.share(prompts), self.ranks.share(uniforms)))

    def replayable(self, rollout: Rollout) -> Rollout:
        """Return a rollout without the recorded routing weights of experts, unless routing.replay needs them."""
        return rollout if REPLAYS[self.config.routing.replay].weights else rollout._replace(expert_weights=None)

    def gather(self, rollout: Rollout) -> Rollout:
        """Gather the responses of all ranks. rollout: this rank's share. Collective: every rank calls it."""
        parts = {name: part for name, part in rollout._asdict().items() if part is not None}
        return Rollout(**{name: self.ranks.gather(part) for name, part in parts.items()})

    def rewarded(self, prompts: Tensor, rollout: Rollout) -> Responses:
        """Return the responses of a rollout to prompts [B, P] together with their rewards."""
        rewards = self.reward(prompts, rollout.tokens)
        return Responses(prompts, rollout, rewards.view(-1, self.config.rollout.group_size))

    def reward(self, prompts: Tensor, tokens: Tensor) -> Tensor:
        """The task's reward of each response, [B]. Each rank computes its share."""
        own = (self.ranks.share(part).cpu().numpy() for part in (prompts, tokens))
        return self.ranks.gather(torch.from_numpy(self.task.reward(*own)).float().to(device()))

    def describe(self, responses: Responses) -> dict[str, Tensor]:
        """Metrics of a step's responses. A response's age is counted in versions behind the weights being trained."""
        return describe(responses, self.version, self.task.stop)

    def rest(self) -> None:
        """Lend the rollout engine's device memory to the actor until new weights are loaded."""
        self.engine.sleep()

    def state(self) -> dict[str, Tensor]:
        """Tensors, for a checkpoint, of responses sampled before the step that trains on them; {} if no option samples ahead."""
        return {}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore responses sampled before the step that trains on them. state: their tensors; {} if no option samples ahead."""
