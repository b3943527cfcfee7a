"""Prompts -> Batch: what happens to a step's prompts before anything is learned from the responses.

On several ranks (`ranks.py`) each samples and scores its share of the rows. Whatever is counted or averaged is so over the whole
batch, which all of them hold.
"""

from __future__ import annotations

import torch
from torch import Tensor

from algos.batch import Batch
from algos.corrections.apply import correct
from harness.build import build_engine, needs_own_sampler, own_precision, samples_as_trainer
from harness.config import Config, PrecisionConfig
from harness.models import device, policy_config
from harness.rollouts import Rollout, RolloutEngine, Sampling
from harness.rollouts.check_weights import SyncCheck
from harness.rollouts.local import LocalEngine
from harness.rollouts.partial import continued
from harness.rollouts.recorded import Recorded, sizes
from harness.rollouts.routes import Routes
from harness.rollouts.turns import respond, respond_greedily, turn_metrics
from harness.routing import REPLAYS
from harness.seeding import generator
from harness.tasks import PAD, Task, TurnTask, stops
from harness.train.clock import Clock
from harness.train.critic import Critic
from harness.train.data.advantages import CreditAssignment
from harness.train.data.batch import Collected, Scores
from harness.train.data.queue import RolloutQueue
from harness.train.data.responses import Greedy, Sampled
from harness.train.data.rewards import RewardShaping
from harness.train.forward import TrainingForward
from harness.train.model.actor import Actor
from harness.train.ranks import join
from harness.train.routing.replay import replayed, replayed_masks, with_masks

SYNC_PROMPTS, SYNC_TOKENS = 4, 16
"""Prompts, and tokens of a response, by which an engine is asked whether it holds the new weights."""


class Collector:
    """Draws prompts, samples responses to them, and gives them rewards, π_old and advantages.

    Life cycle: for each step `load_weights`, `sample`, `score`, `collect`, and `queue.drain` before the next weights.

    engine: samples the rollouts. policy: the trainer's own policy as a sampler, None unless `needs_own_sampler`, and the engine
    itself where `samples_as_trainer`. reference: the policy that the run started from, for a KL term. The methods that take an
    engine serve whoever looks at a policy outside of training: the evaluation, `faultline gradient`, the matching of noise.
    """

    def __init__(self, config: Config, actor: Actor, task: Task, prompts: Tensor, critic: Critic | None = None):
        self.config, self.actor, self.task, self.prompts = config, actor, task, prompts.to(device())
        self.ranks, self.clock = join(), Clock()
        self.credit, self.shaping = CreditAssignment(config, critic), RewardShaping(config, task.answer_length)
        self.forward = TrainingForward(actor, self.ranks, config.actor.micro_tokens)
        self.shape, self.replay = policy_config(config.model, task), REPLAYS[config.routing.replay]
        r = config.rollout
        sampling = Sampling(
            kv_cache=r.kv_cache, temperature=r.temperature, top_p=r.top_p, top_k=r.top_k, stop=stops(task),
            record_support=r.replay_sampling_mask,
        )  # fmt: skip
        seed = {"noise_seed": config.seed} if r.engine.params.get("noise_seed", 0) is None else {}
        self.engine: RolloutEngine = build_engine(config)(self.shape, r.precision, sampling, **seed)
        self.policy: LocalEngine | None = None
        if needs_own_sampler(config):
            own = self.engine if isinstance(self.engine, LocalEngine) and samples_as_trainer(config) else None
            self.policy = own or self.local_engine(own_precision(config))
        self.reference = None
        if config.kl.name is not None and config.kl.reference == "start":
            self.reference = self.local_engine(own_precision(config))
            self.reference.load_weights(actor.weights(), 0)
        uniforms = torch.rand(
            len(self.prompts[:SYNC_PROMPTS]), min(SYNC_TOKENS, task.answer_length), generator=generator(config.seed, "probe")
        )
        self.sync_check = SyncCheck(self.prompts[:SYNC_PROMPTS], uniforms)
        self.filtering: dict[str, Tensor] = {}
        """Metrics of the last step's choice of groups, under rollout.filter."""
        self.queue = RolloutQueue(
            self._sample_share, self._gather, staleness=r.staleness, overlap=r.overlap, steps=config.steps,
            length=task.answer_length, part=r.partial_tokens,
        )  # fmt: skip

    def local_engine(self, precision: PrecisionConfig, *, noise: float = 0.0, **truncation) -> LocalEngine:
        """An embedded engine for this policy, at the temperature of the run. truncation: further fields of `Sampling`."""
        sampling = Sampling(temperature=self.config.rollout.temperature, stop=stops(self.task), **truncation)
        return LocalEngine(self.shape, precision, sampling, noise=noise)

    def load_weights(self, version: int) -> dict[str, float]:
        """Give the actor's weights to the engine, and to the trainer's own policy.

        Where another library loads them, they are verified: UserError if the engine holds others.
        """
        with self.clock.phase("sync"):
            self.engine.load_weights(self.actor.weights(), version)
        if self.policy is not None and self.policy is not self.engine:
            self.policy.load_weights(self.actor.weights(), version)
        if self.engine.tolerance is None:
            return {}
        with self.clock.phase("verify"):
            difference = self.sync_check(self.engine, self.actor)
        return {} if difference is None else {"rollout/sync_difference": difference}

    # --- prompts -> rollout -> reward ------------------------------------------------------------------------------------

    def draw_prompts(self, step: int, again: int = 0) -> Tensor:
        """The step's prompts [B, P], one row per response: the pool is walked in a new order each time round.

        again: of a further round. Its prompts are passed over in the walk where no round needs them.
        """
        n, per_round = len(self.prompts), self.config.rollout.prompts
        number = self._round_number(step, again)
        places = range(number * per_round, (number + 1) * per_round)
        orders = {e: torch.randperm(n, generator=generator(self.config.seed, "prompts", e)) for e in {p // n for p in places}}
        chosen = self.prompts[torch.stack([orders[p // n][p % n] for p in places])]
        return chosen.repeat_interleave(self.config.rollout.group_size, dim=0).to(device())

    def sample(self, step: int) -> Sampled:
        """The responses that are trained on in `step`, sampled by the weights of `rollout.staleness` steps before."""
        prompts = self.draw_prompts(step)
        greedy = self.greedy(self.engine, prompts)
        sampled = self._sampled(prompts, self.queue.next(step), greedy)
        if self.config.rollout.filter.max_rounds is not None:
            sampled = self._filtered(sampled, step, self.config.rollout.filter.max_rounds)
        if not self.config.rollout.overlap:
            self.engine.sleep()
        return sampled

    def _filtered(self, sampled: Sampled, step: int, max_rounds: int) -> Sampled:
        """As many groups as a step has, of unequal rewards as long as further rounds give such."""
        wanted, rounds = len(sampled.rewards), 1
        while rounds < max_rounds and int(sampled.informative.sum()) < wanted:
            prompts = self.draw_prompts(step, rounds)
            greedy = self.greedy(self.engine, prompts)
            sampled = sampled.and_more(self._sampled(prompts, self._gather(self._sample_share(step, None, rounds)), greedy))
            rounds += 1
        informative = sampled.informative.double()
        self.filtering = {
            "rollout/rounds": torch.tensor(float(rounds)),
            "rollout/filtered_groups": 1 - informative.mean(),
            "rollout/filler_groups": 1 - (informative.sum() / wanted).clamp(max=1),
            "reward/sampled": sampled.rewards.mean(),
        }
        return sampled.chosen(wanted)

    def _round_number(self, step: int, again: int) -> int:
        return step * (self.config.rollout.filter.max_rounds or 1) + again

    def sample_by(self, engine: RolloutEngine, prompts: Tensor, uniforms: Tensor) -> Sampled:
        """The responses of an engine, with the weights that it holds, to prompts [B, P] in groups of `rollout.group_size`."""
        rollout = self.generate(engine, prompts, uniforms)
        return self._sampled(prompts, rollout, self.greedy(engine, prompts))

    def generate(self, engine: RolloutEngine, prompts: Tensor, uniforms: Tensor) -> Rollout:
        """The responses of an engine to prompts [B, P] by uniforms [B, T], each rank sampling its share."""
        return self._gather(self._generate_share(engine, prompts, uniforms))

    def answers(self, policy: RolloutEngine, prompts: Tensor, uniforms: Tensor) -> Tensor:
        """The tokens alone of `generate`, [B, T]."""
        return self.ranks.gather(respond(policy, self.task, self.ranks.share(prompts), self.ranks.share(uniforms)).tokens)

    def compute_rewards(self, prompts: Tensor, tokens: Tensor) -> Tensor:
        """[B]: the task's reward of each response, each rank asking for its share."""
        own = (self.ranks.share(part).cpu().numpy() for part in (prompts, tokens))
        return self.ranks.gather(torch.from_numpy(self.task.reward(*own)).float().to(device()))

    def greedy(self, engine: RolloutEngine, prompts: Tensor) -> Greedy | None:
        """Each prompt's most probable response by the engine's weights, while nothing else asks it; None if nothing reads it."""
        if not self.credit.reads_greedy:
            return None
        with self.clock.phase("generate"):
            distinct = prompts[:: self.config.rollout.group_size]
            tokens = respond_greedily(engine, self.task, distinct)
        lengths = (tokens != PAD).sum(1)
        self.clock.sampled_tokens += int(lengths.sum())
        rewards = torch.from_numpy(self.task.reward(distinct.cpu().numpy(), tokens.cpu().numpy())).float().to(device())
        # What rank 0 got, as every rank asked for all of them.
        return Greedy._make(self.ranks.gather(part)[: len(distinct)] for part in (rewards, lengths))

    def _sampled(self, prompts: Tensor, rollout: Rollout, greedy: Greedy | None) -> Sampled:
        rewards = self.compute_rewards(prompts, rollout.tokens)
        return Sampled(prompts, rollout, rewards.view(-1, self.config.rollout.group_size), greedy)

    def _sample_share(self, step: int, begun: Rollout | None = None, again: int = 0) -> Rollout:
        """This rank's share of the rollout of `step`, by the weights that the engine holds; of partial rollouts with one part
        more than `begun` [B, t]. again: see `draw_prompts`."""
        with self.clock.phase("generate"):
            prompts = self.draw_prompts(step, again)
            random = generator(self.config.seed, "rollout", self._round_number(step, again))
            uniforms = torch.rand(len(prompts), self.task.answer_length, generator=random)
            start = 0 if begun is None else begun.tokens.shape[1]
            if self.config.rollout.partial_tokens is not None:
                uniforms = uniforms[:, start : start + self.config.rollout.partial_tokens]
            if begun is None:
                rollout = self._generate_share(self.engine, prompts, uniforms)
            else:
                own = Rollout(**{name: self.ranks.share(part) for name, part in begun._asdict().items() if part is not None})
                shares = self.ranks.share(prompts), own, self.ranks.share(uniforms)
                rollout = continued(self.engine, *shares, self.task.stop)
        self.clock.sampled_tokens += int(rollout.written[:, start:].sum()) * self.ranks.size
        return rollout

    def _generate_share(self, engine: RolloutEngine, prompts: Tensor, uniforms: Tensor) -> Rollout:
        """This rank's share of the responses, without the weights of experts that nothing replays."""
        rollout = respond(engine, self.task, self.ranks.share(prompts), self.ranks.share(uniforms))
        return rollout if self.replay.weights else rollout._replace(expert_weights=None)

    def _gather(self, rollout: Rollout) -> Rollout:
        """The responses of all ranks, from those of each."""
        parts = {name: part for name, part in rollout._asdict().items() if part is not None}
        return Rollout(**{name: self.ranks.gather(part) for name, part in parts.items()})

    # --- -> log-probabilities -> advantages -> Batch ---------------------------------------------------------------------

    def score(self, sampled: Sampled, order: list[Tensor]) -> Scores:
        """π_old and the KL term's reference on the responses. order: the rows of each mini-batch, see `minibatch_order`."""
        prompts, tokens = sampled.prompts, sampled.rollout.tokens
        old = forward_old = None
        scoring, replay_old = self.config.actor.scoring, replayed(sampled.rollout, self.config)
        replay, masks = replay_old, replayed_masks(sampled.rollout, self.config)
        if self.replay.source == "trainer":
            forward_old, routes = self.route_forward(sampled, order)
            replay = with_masks(Routes(routes.ids), masks)
        elif scoring == "forward" or (scoring == "exact" and len(order) > 1):
            forward_old = self.score_forward(sampled, order, replay)
        if scoring == "exact" and self._is_own(sampled.rollout) and not self.replay.by_old:
            old = sampled.rollout.logp
        elif scoring == "exact":
            old = self.score_by(self.own_policy, prompts, tokens, replay_old)
        elif scoring == "forward":
            old = forward_old
        return Scores(old, forward_old, self.score_reference(sampled), replay)

    def score_reference(self, sampled: Sampled) -> Tensor | None:
        """log π_ref [B, T] of a KL term, None without one that asks for it.

        The reference chooses its own experts under every replay: it is a policy of its own, and so is its router. A sampling
        mask it does replay: else a KL term would see the truncated mass of a policy that is the reference itself.
        """
        if self.reference is not None:
            masks = replayed_masks(sampled.rollout, self.config)
            return self.score_by(self.reference, sampled.prompts, sampled.rollout.tokens, masks)
        return sampled.rollout.logp if self.config.kl.reference == "rollout" else None

    def _is_own(self, rollout: Rollout) -> bool:
        """Whether the trainer's own policy sampled it with the weights of now: scoring walks the path of sampling, and would give
        the bits of the rollout again."""
        if self.policy is not self.engine or self.engine.version is None:
            return False
        return bool(rollout.version[rollout.written].eq(self.engine.version).all())

    def score_forward(self, sampled: Sampled, order: list[Tensor], replay: Recorded | None) -> Tensor:
        """log π_old [B, T] by the training forward, in the mini-batches of the first epoch, which has all rows."""
        logp = torch.zeros(sampled.rollout.tokens.shape, device=sampled.rollout.tokens.device)
        for rows in order[: self.config.actor.num_minibatches]:
            own = None if replay is None else replay.of(rows)
            logp[rows] = self.forward(sampled.prompts[rows], sampled.rollout.tokens[rows], own)
        return logp

    def route_forward(self, sampled: Sampled, order: list[Tensor]) -> tuple[Tensor, Routes]:
        """The same of a mixture of experts that chooses its own, with its routes."""
        logp, parts = torch.zeros(sampled.rollout.tokens.shape, device=sampled.rollout.tokens.device), []
        first, masks = order[: self.config.actor.num_minibatches], replayed_masks(sampled.rollout, self.config)
        for rows in first:
            own = None if masks is None else masks.of(rows)
            logp[rows], routes = self.forward.with_routes(sampled.prompts[rows], sampled.rollout.tokens[rows], own)
            parts.append(routes)
        return logp, Routes.cat(parts).of(torch.cat(first).argsort())

    def score_by(self, policy: LocalEngine, prompts: Tensor, tokens: Tensor, replay: Recorded | None = None) -> Tensor:
        """log-probabilities [B, T] along the sampling path of a policy, each rank scoring its share."""
        return self.route_by(policy, prompts, tokens, replay)[0]

    def route_by(
        self, policy: LocalEngine, prompts: Tensor, tokens: Tensor, replay: Recorded | None = None
    ) -> tuple[Tensor, Routes | None]:
        """The same with the routes taken, None of a dense model."""
        own = None if replay is None else replay.map(self.ranks.share)
        logp, routes = policy.score_routed(self.ranks.share(prompts), self.ranks.share(tokens), own)
        return self.ranks.gather(logp), None if routes is None else routes.map(self.ranks.gather)

    def scored_batch(self, engine: RolloutEngine, prompts: Tensor, uniforms: Tensor) -> Batch:
        """The responses of an engine, scored by the trainer's own policy: what the mismatch between the two is computed from.

        It is the mismatch that a correction would see. So what π_old replays of the engine is replayed here too.
        """
        rollout = self.generate(engine, prompts, uniforms)
        logp = self.score_by(self.own_policy, prompts, rollout.tokens, replayed(rollout, self.config))
        return Batch(rollout.logp, rollout.mask, logp_old=logp)

    def collect(self, sampled: Sampled, scores: Scores) -> tuple[Collected, dict[str, Tensor]]:
        """(the batch of a step with its advantages, the metrics of what was taken off the rewards)."""
        tokens = sampled.rollout.tokens
        rewards, penalty, metrics = self.shaping(sampled, scores.old, scores.reference)
        batch = Batch(
            logp_rollout=sampled.rollout.logp,
            mask=sampled.rollout.mask,
            logp_old=scores.old,
            segments=self.segment_numbers(sampled.rollout),
            logp_ref=scores.reference,
            prompt=sampled.prompt_numbers,
        )
        kept = self._kept_responses(batch).view_as(sampled.rewards) if self.config.baseline == "kept" else None
        credit = self.credit(sampled._replace(rewards=rewards, greedy=self.shaping.of_greedy(sampled.greedy)), penalty, kept)
        batch = batch._replace(advantages=credit.advantages)
        return Collected(sampled.prompts, tokens, scores.forward, scores.replay, batch, credit.values, credit.returns), metrics

    def segment_numbers(self, rollout: Rollout) -> Tensor | None:
        """[B, T]: the number of each token's segment in its response: its turn, None for a task without turns; or the run of
        tokens that one version of the weights sampled."""
        if self.config.segments == "version":
            return torch.nn.functional.pad((rollout.version.diff(dim=1) != 0).cumsum(1), (1, 0))
        if not isinstance(self.task, TurnTask):
            return rollout.turns
        return torch.from_numpy(self.task.segments(rollout.tokens.cpu().numpy())).to(rollout.tokens.device)

    def _kept_responses(self, batch: Batch) -> Tensor:
        """[B] bool: whether the correction keeps a token of the response."""
        return correct(batch, self.config.correction).kept.any(-1)

    @property
    def own_policy(self) -> LocalEngine:
        """The trainer's own policy, where `needs_own_sampler`."""
        assert self.policy is not None
        return self.policy

    def describe(self, sampled: Sampled, updates: int) -> dict[str, Tensor]:
        """The metrics of the responses; updates: optimizer steps so far."""
        rewards, tokens, written = sampled.rewards, sampled.rollout.tokens, sampled.rollout.written
        lengths = written.sum(1)
        metrics = {
            "reward/rollout": rewards.view(-1).mean(),
            "reward/informative_groups": sampled.informative.float().mean(),
            "mismatch/dropped": (written & ~sampled.rollout.mask).sum(),
            "rollout/response_tokens": lengths.float().mean(),
            "rollout/version_lag": (updates - sampled.rollout.version)[written].double().mean(),
        }
        metrics |= turn_metrics(sampled.rollout)
        if self.config.rollout.partial_tokens is not None:
            version = torch.where(written, sampled.rollout.version, sampled.rollout.version[:, :1])
            metrics["rollout/version_lag_max"] = updates - version.amin()
            metrics["rollout/mixed_versions"] = (version.amax(1) > version.amin(1)).double().mean()
        if self.config.rollout.filter.max_rounds is not None:
            metrics |= self.filtering
        if sampled.rollout.support is not None:
            metrics["rollout/support_tokens"] = sizes(sampled.rollout.support)[written].double().mean()
        if sampled.greedy is not None:
            metrics["reward/greedy"] = sampled.greedy.rewards.mean()
        if self.task.stop:
            ended = torch.isin(tokens, torch.tensor(self.task.stop, device=tokens.device)).any(1)
            metrics["rollout/truncated"] = 1 - ended.float().mean()
            metrics["rollout/same_length"] = (lengths == lengths.mode().values).float().mean()
        return metrics
