"""Scoring of responses: their log-probabilities under the old policy π_old and under the reference policy π_ref of a KL term."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from algos.batch import Batch
from harness.build import Plan, local_engine, needs_own_sampler, own_precision, samples_as_trainer
from harness.rollouts import Rollout, RolloutEngine
from harness.rollouts.local import LocalEngine
from harness.rollouts.recorded import Recorded
from harness.rollouts.routes import Routes
from harness.routing import REPLAYS
from harness.train.data.batch import Scores
from harness.train.data.responses import Responses
from harness.train.forward import Forward, TrainingForward
from harness.train.model.actor import Actor
from harness.train.model.frozen import FrozenPolicy
from harness.train.ranks import join
from harness.train.routing.replay import replayed_routes

Support = Callable[[Rollout], Tensor | None]
"""Function from a rollout to the tokens over which every policy is renormalised, [B, T, ⌈V/8⌉] bits; None: over all tokens."""


class Scorer:
    """Scores responses under π_old, the policy before the step: by the training forward pass, or by an engine as it samples.

    Life cycle: for each step `load_weights`, then `score`, before the actor's next optimizer step.

    policy: engine that samples exactly the trainer's policy; None if nothing needs it (`needs_own_sampler`). It is the rollout
    engine if that is exact too (`samples_as_trainer`). reference: the policy that the run started from, for a KL term; None if
    `needs_frozen_policy` says so, in which case `frozen` is that policy. support: gives the tokens over which policies are
    renormalised; by default all tokens.
    """

    def __init__(
        self,
        plan: Plan,
        actor: Actor,
        engine: RolloutEngine,
        frozen: FrozenPolicy | None = None,
        support: Support = lambda rollout: None,
    ):
        config = plan.config
        self.plan, self.config, self.actor, self.engine, self.support = plan, config, actor, engine, support
        self.ranks, self.mode = join(), REPLAYS[config.routing.replay]
        self.forward = TrainingForward(actor, self.ranks, config.actor.micro_tokens)
        self.policy: LocalEngine | None = None
        self._unloaded: int | None = None  # version of the weights that the policy still has to take
        if needs_own_sampler(config):
            own = engine if isinstance(engine, LocalEngine) and samples_as_trainer(config) else None
            self.policy = own or local_engine(plan, own_precision(config))
        self.frozen = Forward(frozen, self.ranks, config.actor.micro_tokens) if frozen is not None else None
        self.reference = None
        if config.kl.name is not None and frozen is None:
            self.reference = local_engine(plan, own_precision(config))
            self.reference.load_weights(actor.weights(), 0)

    @property
    def own_policy(self) -> LocalEngine:
        """Engine that samples the trainer's own policy, with the weights of the last `load_weights`. See `needs_own_sampler`."""
        assert self.policy is not None
        if self._unloaded is not None:
            self.policy.load_weights(self.actor.weights(), self._unloaded)
            self._unloaded = None
        return self.policy

    def load_weights(self, version: int) -> None:
        """Have the trainer's own policy take the actor's weights before its next use.

        Without actor.scoring=exact, only evaluations and diagnostics use it. If it is the rollout engine, this does nothing.
        """
        if self.policy is not None and self.policy is not self.engine:
            self._unloaded = version

    def score(self, responses: Responses, order: list[Tensor]) -> Scores:
        """Log-probabilities of responses under π_old (before the step) and a KL term's π_ref. order: rows of each mini-batch."""
        rollout, scoring = responses.rollout, self.config.actor.scoring
        old = forward_old = None
        replay = replay_old = self.replayed(rollout)
        if self.mode.source == "trainer":
            forward_old, routes = self.route_forward(responses, order)
            replay = self.recorded(rollout, Routes(routes.ids))
        elif scoring == "forward" or (scoring == "exact" and len(order) > 1):
            forward_old = self.score_forward(responses, order, replay)
        if scoring == "exact" and self._is_own(rollout) and not self.mode.by_old:
            old = rollout.logp
        elif scoring == "exact":
            old = self.score_by(self.own_policy, responses.prompts, rollout.tokens, replay_old)
        elif scoring == "forward":
            old = forward_old
        return Scores(old, forward_old, self.score_reference(responses, order), replay)

    def score_reference(self, responses: Responses, order: list[Tensor]) -> Tensor | None:
        """Return log π_ref [B, T] in nats for a KL term; None without one. order: rows of each mini-batch.

        The reference always chooses its own experts, because its router differs from the policy's. If `support` renormalises
        the policies, π_ref is renormalised over the same tokens, because the KL term of equal policies must be 0.
        """
        rollout = responses.rollout
        if self.frozen is not None:
            return self._by_forward(self.frozen, responses, order, self.recorded(rollout))
        if self.reference is None:
            return None
        return self.score_by(self.reference, responses.prompts, rollout.tokens, self.recorded(rollout))

    def replayed(self, rollout: Rollout) -> Recorded | None:
        """Return the engine's records (experts, sampling masks) that π_old replays when it is scored; None if there are none."""
        return self.recorded(rollout, replayed_routes(rollout, self.config.routing.replay))

    def recorded(self, rollout: Rollout, routes: Routes | None = None) -> Recorded | None:
        """Combine experts (routes) and the sampling masks of a rollout into one record; None if there are neither."""
        support = self.support(rollout)
        return None if routes is None and support is None else Recorded(routes, support)

    def _is_own(self, rollout: Rollout) -> bool:
        """Whether the trainer's own policy sampled `rollout` with its present weights, so that scoring would repeat sampling."""
        if self.policy is not self.engine or self.engine.version is None:
            return False
        return bool(rollout.version[rollout.written].eq(self.engine.version).all())

    def score_forward(self, responses: Responses, order: list[Tensor], replay: Recorded | None) -> Tensor:
        """Return log π_old [B, T] by the training forward, in the mini-batches of the first epoch, which contain all rows."""
        return self._by_forward(self.forward, responses, order, replay)

    def _by_forward(self, forward: Forward, responses: Responses, order: list[Tensor], replay: Recorded | None) -> Tensor:
        tokens = responses.rollout.tokens
        logp = torch.zeros(tokens.shape, device=tokens.device)
        for rows in order[: self.config.actor.num_minibatches]:
            own = None if replay is None else replay.of(rows)
            logp[rows] = forward(responses.prompts[rows], tokens[rows], own)
        return logp

    def route_forward(self, responses: Responses, order: list[Tensor]) -> tuple[Tensor, Routes]:
        """Return (log π_old [B, T] in nats by the training forward pass, the experts that this pass chose)."""
        tokens, parts = responses.rollout.tokens, []
        logp, replay = torch.zeros(tokens.shape, device=tokens.device), self.recorded(responses.rollout)
        first = order[: self.config.actor.num_minibatches]
        for rows in first:
            own = None if replay is None else replay.of(rows)
            logp[rows], routes = self.forward.with_routes(responses.prompts[rows], tokens[rows], own)
            parts.append(routes)
        return logp, Routes.cat(parts).of(torch.cat(first).argsort())

    def score_by(self, policy: LocalEngine, prompts: Tensor, tokens: Tensor, replay: Recorded | None = None) -> Tensor:
        """Log-probabilities [B, T] of tokens, computed as `policy` computes them while it samples. Each rank scores its share."""
        return self.route_by(policy, prompts, tokens, replay)[0]

    def route_by(
        self, policy: LocalEngine, prompts: Tensor, tokens: Tensor, replay: Recorded | None = None
    ) -> tuple[Tensor, Routes | None]:
        """Return (log-probabilities [B, T] as `policy` computes them while it samples, its experts; None for a dense model)."""
        own = None if replay is None else replay.map(self.ranks.share)
        logp, routes = policy.score_routed(self.ranks.share(prompts), self.ranks.share(tokens), own)
        return self.ranks.gather(logp), None if routes is None else routes.map(self.ranks.gather)

    def scored_batch(self, prompts: Tensor, rollout: Rollout) -> Batch:
        """Batch of an engine's rollout with its log π_old, computed with those records of the rollout that π_old replays."""
        logp = self.score_by(self.own_policy, prompts, rollout.tokens, self.replayed(rollout))
        return Batch(rollout.logp, rollout.mask, logp_old=logp)
