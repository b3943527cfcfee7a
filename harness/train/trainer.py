"""One step of a run: the way from prompts to an optimizer step. `run.py` repeats and records it.

On several ranks (`ranks.py`) each samples and trains on its share of the rows; whatever is counted or averaged is so over the
whole batch, which all of them hold.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from algos.batch import Batch
from algos.corrections.apply import Corrected, correct
from algos.diagnostics.correction import correct_with_diagnostics, finish_applied, finish_diagnostics
from algos.diagnostics.mismatch import finish_mismatch
from algos.diagnostics.positions import positions
from algos.diagnostics.probabilities import probabilities
from algos.reductions import Counts
from harness.build import (
    build_advantage,
    build_engine,
    build_objective,
    build_task,
    needs_own_sampler,
    own_precision,
)
from harness.config import Config
from harness.dumps.record import dump
from harness.errors import UserError
from harness.models import device, policy_config
from harness.rollouts import Rollout
from harness.rollouts.local import LocalEngine
from harness.rollouts.sync import SyncCheck
from harness.run.folder import RunFolder
from harness.seeding import generator, seed_globals
from harness.tasks import PAD, TurnTask
from harness.train.actor import DeepSpeedActor
from harness.train.probes import Probes
from harness.train.queue import RolloutQueue
from harness.train.ranks import join
from harness.train.warmstart import start


class Sampled(NamedTuple):
    """The responses of all ranks: what the policy reads of them, and what the algorithms do.

    prompts [B, P] and tokens [B, T]: int64. forward_old [B, T]: log π_old from the training forward; equals the batch's
    logp_old up to rounding. None when no later mini-batch needs it. batch: logp_old is None with scoring=none.
    """

    prompts: Tensor
    tokens: Tensor
    forward_old: Tensor | None
    batch: Batch

    def rows(self, index: Tensor) -> Sampled:
        """Some responses, a mini-batch or a micro-batch."""
        forward_old = None if self.forward_old is None else self.forward_old[index]
        return Sampled(self.prompts[index], self.tokens[index], forward_old, self.batch.rows(index))


class Trainer:
    """The pieces of one run, and the algorithm that they make: `step`."""

    def __init__(self, config: Config, folder: RunFolder):
        self.config, self.folder, self.ranks = config, folder, join()
        self.objective, self.advantage = build_objective(config), build_advantage(config)
        self.task = build_task(config)
        net, *prompts = start(config, self.task)
        self.train_prompts, self.held_out = (pool.to(device()) for pool in prompts)
        if (asked := config.evaluation.prompts) > len(self.held_out):
            raise UserError(f"evaluation.prompts={asked}: only {len(self.held_out)} prompts are held out; ask for no more")
        if self.task.counts:
            folder.log_event("prompts", 0, **self.task.counts)
        r, shape = config.rollout, policy_config(config.model, self.task)
        sampled = {"kv_cache": r.kv_cache, "temperature": r.temperature, "top_p": r.top_p, "top_k": r.top_k}
        self.actor = DeepSpeedActor(net, config.actor, temperature=r.temperature)
        self.engine = build_engine(config)(shape, r.precision, **sampled, stop=self.task.stop)
        asked = self.train_prompts[:4]
        uniforms = torch.rand(len(asked), min(16, self.task.answer_length), generator=generator(config.seed, "probe"))
        self.verify = SyncCheck(asked, uniforms)
        # The trainer's own policy as a sampler: scores π_old along the sampling path, and is what the evaluation asks.
        self.policy = None
        if needs_own_sampler(config):
            self.policy = LocalEngine(shape, own_precision(config), temperature=r.temperature, stop=self.task.stop)
        self.probes = Probes(
            config.evaluation.probe, lambda p: LocalEngine(shape, p, temperature=r.temperature, stop=self.task.stop)
        )
        self.reference = None
        if config.kl.name is not None and config.kl.reference == "start":
            self.reference = LocalEngine(shape, own_precision(config), temperature=r.temperature, stop=self.task.stop)
            self.reference.load_weights(self.actor.weights(), 0)
        self.queue = RolloutQueue(
            self.sample, self.gathered, staleness=config.rollout.staleness, overlap=config.rollout.overlap, steps=config.steps
        )
        self.updates = 0  # optimizer steps so far: the version of the weights
        self.seconds: dict[str, float] = {}

    def step(self, step: int) -> dict[str, float]:
        """Prompts → rollout → reward → π_old → advantages → correction → mini-batches of objective and optimizer step."""
        c, began = self.config, time.perf_counter()
        self.seconds, self.sampled = {}, 0
        seed_globals(c.seed, step)
        metrics = self.sync()
        metrics |= self.evaluate() if step % c.evaluation.every == 0 else {}
        prompts = self.prompts(step)
        greedy = self.greedy(prompts) if "greedy" in self.advantage.func.needs else None
        rollout = self.queue.next(step)
        if not c.rollout.overlap:
            self.engine.sleep()
        rewards = self.rewards(prompts, rollout.tokens)
        groups = rewards.view(c.rollout.prompts, c.rollout.group_size)
        written = rollout.tokens != PAD
        mask = written & rollout.logp.isfinite()
        order = self.order(step)
        with self.clock("score"):
            logp_old, forward_old = self.score(prompts, rollout.tokens, order)
            logp_ref = None if self.reference is None else self.scored(self.reference, prompts, rollout.tokens)
            logp_ref = rollout.logp if c.kl.reference == "rollout" else logp_ref
        prompt = torch.arange(len(mask), device=mask.device) // c.rollout.group_size
        batch = Batch(rollout.logp, mask, logp_old, None, self.segments(rollout.tokens), logp_ref, prompt)
        batch = batch._replace(advantages=self.advantages(groups, greedy, batch))
        metrics |= {
            "reward/rollout": rewards.mean(),
            "reward/informative_groups": (groups.amax(1) != groups.amin(1)).float().mean(),
            "mismatch/dropped": (written & ~mask).sum(),
            "rollout/response_tokens": written.sum(1).float().mean(),
            "rollout/version_lag": (self.updates - rollout.version).float().mean(),
        }
        if greedy is not None:
            metrics["reward/greedy"] = greedy.mean()
        if self.task.stop:
            ended = torch.isin(rollout.tokens, torch.tensor(self.task.stop, device=rollout.tokens.device)).any(1)
            metrics["rollout/truncated"] = 1 - ended.float().mean()
            lengths = written.sum(1)
            metrics["rollout/same_length"] = (lengths == lengths.mode().values).float().mean()
        with self.clock("train"):
            updated, logp = self.update(Sampled(prompts, rollout.tokens, forward_old, batch), order)
        batch = batch if logp_old is not None else batch._replace(logp_old=logp)
        metrics |= updated | self.diagnose(batch, step)
        self.queue.drain()
        if c.dump.every and step % c.dump.every == 0 and self.ranks.rank == 0:
            sampled = Sampled(prompts, rollout.tokens, forward_old, batch)
            dump(folder=self.folder, step=step, sampled=sampled, order=order, logp=logp, rewards=groups, version=rollout.version)
        self.seconds["step"] = time.perf_counter() - began
        if "generate" in self.seconds:  # not at the end of a stale run, when all is sampled
            metrics["throughput/rollout_tokens"] = self.sampled / self.seconds["generate"]
        return {name: float(value) for name, value in metrics.items()} | {f"time/{k}": v for k, v in self.seconds.items()}

    def advantages(self, rewards: Tensor, greedy: Tensor | None, batch: Batch) -> Tensor:
        """[B, T] from the rewards [P, G]; with baseline=kept those of rejected responses enter no baseline."""
        known = {"lengths": batch.mask.sum(-1).view_as(rewards), "greedy": greedy}
        inputs = {name: known[name] for name in self.advantage.func.needs}
        if self.config.baseline == "kept":
            inputs["kept"] = correct(batch, self.objective.correction).kept.any(-1).view_as(rewards)
        return self.advantage(rewards, **inputs).view(-1, 1).expand_as(batch.logp_rollout)

    def diagnose(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """The mismatch and what the correction does to it; every diagnostics.every steps all there is to know.

        A metric that does not exist is absent: all of them without a token, the tail of weights that do not vary, the length of
        dropped responses when none is.
        """
        if not batch.mask.any():
            return {}
        c = self.config
        rows = correct_with_diagnostics(batch, c.correction)[1]
        metrics = finish_mismatch(rows) | finish_applied(rows)
        if c.diagnostics.every and step % c.diagnostics.every == 0:
            metrics |= finish_diagnostics(rows, c.correction) | probabilities(batch) | positions(batch)
        absent = ("mismatch/pareto_k", "profile/", "correction/used_length", "correction/dropped_length")
        return {name: value for name, value in metrics.items() if not (value.isnan() and name.startswith(absent))}

    def greedy(self, prompts: Tensor) -> Tensor:
        """[P]: the reward of each prompt's most probable response by the engine's weights, while nothing else asks it."""
        with self.clock("generate"):
            asked = prompts[:: self.config.rollout.group_size]
            tokens = self.engine.greedy(asked, self.task.answer_length)
        self.sampled += int((tokens != PAD).sum())
        rewards = torch.from_numpy(self.task.reward(asked.cpu().numpy(), tokens.cpu().numpy())).float().to(device())
        return self.ranks.gather(rewards)[: len(asked)]  # what rank 0 got, as every rank asked for all of them

    def segments(self, tokens: Tensor) -> Tensor | None:
        """[B, T]: the number of each token's turn in its response; None of a task without turns."""
        if not isinstance(self.task, TurnTask):
            return None
        return torch.from_numpy(self.task.segments(tokens.cpu().numpy())).to(tokens.device)

    def sample(self, step: int) -> Rollout:
        """This rank's share of the rollout of `step`, by the weights that the engine holds."""
        with self.clock("generate"):
            prompts = self.prompts(step)
            uniforms = torch.rand(len(prompts), self.task.answer_length, generator=generator(self.config.seed, "rollout", step))
            rollout = self.engine.generate(*map(self.ranks.share, (prompts, uniforms)))
        self.sampled += int((rollout.tokens != PAD).sum()) * self.ranks.size
        return rollout

    def rewards(self, prompts: Tensor, tokens: Tensor) -> Tensor:
        """What the task's verifier says of all rows, each rank having asked it about its share."""
        own = (self.ranks.share(part).cpu().numpy() for part in (prompts, tokens))
        return self.ranks.gather(torch.from_numpy(self.task.reward(*own)).float().to(device()))

    def order(self, step: int) -> list[Tensor]:
        """The rows of each mini-batch, every epoch in an order of its own."""
        a, drawn = self.config.actor, generator(self.config.seed, "minibatches", step)
        rows = self.config.rollout.prompts * self.config.rollout.group_size
        return [part for _ in range(a.epochs) for part in torch.randperm(rows, generator=drawn).chunk(a.num_minibatches)]

    def gathered(self, rollout: Rollout) -> Rollout:
        """The responses of all ranks, from those of each."""
        return Rollout(*map(self.ranks.gather, rollout))

    def sync(self) -> dict[str, float]:
        """The actor's weights to the engine, verified where another library loads them, and to the trainer's own policy."""
        with self.clock("sync"):
            self.engine.load_weights(self.actor.weights(), self.updates)
        if self.policy is not None:
            self.policy.load_weights(self.actor.weights(), self.updates)
        if self.engine.tolerance is None:
            return {}
        with self.clock("verify"):
            difference = self.verify(self.engine, self.actor)
        return {} if difference is None else {"rollout/sync_difference": difference}

    def score(self, prompts: Tensor, tokens: Tensor, order: list[Tensor]) -> tuple[Tensor | None, Tensor | None]:
        """(log π_old, the training forward's own log π_old where a later mini-batch needs it); neither with scoring=none."""
        if self.config.actor.scoring == "none":
            return None, None
        exact = self.config.actor.scoring == "exact"
        forward = None
        if not exact or len(order) > 1:
            forward = torch.zeros(tokens.shape, device=tokens.device)
            with torch.no_grad():
                for rows in order[: self.config.actor.num_minibatches]:  # the first epoch, which has them all
                    forward[rows] = self.forward(prompts[rows], tokens[rows])
        if not exact:
            return forward, forward
        return self.scored(self.policy, prompts, tokens), forward

    def scored(self, policy: LocalEngine, prompts: Tensor, tokens: Tensor) -> Tensor:
        """log-probabilities along the sampling path of a policy, each rank scoring its share."""
        return self.ranks.gather(policy.score(self.ranks.share(prompts), self.ranks.share(tokens)))

    @torch.no_grad()
    def forward(self, prompts: Tensor, tokens: Tensor) -> Tensor:
        """log π_θ of a mini-batch by the training forward, in the shapes of `update`: an unmoved policy gives the same bits."""
        logp = torch.zeros(tokens.shape, device=tokens.device)
        for part in self.parts(prompts, tokens):
            logp[part] = self.actor.logp(prompts[part], tokens[part])[0]
        return self.ranks.sum(logp)  # of the other ranks' rows each has 0

    def parts(self, prompts: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
        """The micro-batches of this rank, as numbers of rows of a mini-batch; every rank has as many."""
        own, budget = self.ranks.share(torch.arange(len(tokens))), self.config.actor.micro_tokens
        width = sum(int((part != PAD).any(0).sum()) for part in (prompts, tokens))
        return own.split(max(1, budget // width) if budget else len(own))

    def update(self, sampled: Sampled, order: list[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """One optimizer step per mini-batch; (metrics, log π_θ of all tokens, each just before its own optimizer step)."""
        batch, spec = sampled.batch, self.objective.correction
        old = batch.logp_rollout if batch.logp_old is None else batch.logp_old
        whole = correct(batch._replace(logp_old=old), spec)
        metrics, per_step, norms = {}, [], []
        trained = torch.zeros_like(batch.logp_rollout)
        for rows in order:
            mini = sampled.rows(rows)
            trained[rows] = 0.0
            anew = spec.ratio == "current" and batch.logp_old is not None
            corrected = self.correction(mini) if anew else whole.rows(rows)
            mini = mini._replace(batch=self.objective.select(mini.batch))
            counts, sums = Counts.of(corrected.counted, mini.batch.prompt), Counter()
            parts = self.parts(mini.prompts, mini.tokens)
            for part in parts:
                own, done = mini.rows(part), corrected.rows(part)
                logp, entropy = self.logp(own)
                trained[rows[part]] = logp.detach()
                if batch.logp_old is None:  # of π_θ as this forward has it
                    done = correct(own.batch._replace(logp_old=logp.detach()), spec)
                loss, extra = self.objective(logp, own.batch, done, counts.rows(part))
                self.actor.backward(loss, last=part is parts[-1])
                extra["actor/loss"] = loss.detach()
                entropy = torch.where(own.batch.mask, entropy, 0.0).sum()
                extra["actor/entropy"] = entropy / mini.batch.mask.sum().clamp(min=1)
                sums.update({name: value.detach().double() for name, value in extra.items()})
            norms.append(self.actor.step())
            self.updates += 1
            per_step.append(self.ranks.sum(torch.stack(list(sums.values()))))
        metrics |= dict(zip(sums, torch.stack(per_step).mean(0), strict=True))
        steps = [norm for norm in norms if norm is not None]
        metrics["actor/skipped"] = 1 - len(steps) / len(norms)
        if steps:
            metrics["actor/grad_norm"] = torch.tensor(steps, dtype=torch.float64).amax()  # NaN, if there is one
        return metrics, self.ranks.sum(trained)

    def logp(self, rows: Sampled) -> tuple[Tensor, Tensor]:
        """(log π_θ with gradient, entropy) of some rows: at π_old this is `logp_old` to the bit, with the forward's gradient."""
        forward, entropy = self.actor.logp(rows.prompts, rows.tokens)
        if rows.batch.logp_old is None:
            return forward, entropy
        start = forward.detach() if rows.forward_old is None else rows.forward_old
        return rows.batch.logp_old + (forward - start), entropy

    def correction(self, mini: Sampled) -> Corrected:
        """That of the current ratio of a mini-batch, normalised, if at all, over it: π_θ moves between mini-batches."""
        forward = self.forward(mini.prompts, mini.tokens)
        start = forward if mini.forward_old is None else mini.forward_old
        current = mini.batch.logp_old + (forward - start)
        return correct(mini.batch._replace(logp_old=current), self.objective.correction)

    def evaluate(self) -> dict[str, float]:
        """Held-out reward of the policy's current weights, with the same prompts and the same random numbers every time."""
        with self.clock("evaluate"):
            e = self.config.evaluation
            prompts = self.held_out[: e.prompts].repeat_interleave(e.samples, dim=0)
            uniforms = torch.rand(len(prompts), self.task.answer_length, generator=generator(0, "evaluation"))
            asked = self.policy if e.policy == "own" else self.engine
            answers = self.gathered(asked.generate(*map(self.ranks.share, (prompts, uniforms)))).tokens
            reward = self.rewards(prompts, answers).cpu().double().numpy()
            probed = self.probes.measure(self.actor, self.policy, self.updates, prompts, uniforms)
        by_prompt = reward.reshape(e.prompts, e.samples).mean(1)
        # Clustered by prompt, as the responses to one are not independent: sqrt(Σ_p (R_p − R)² / (P (P − 1))).
        stderr = float(by_prompt.std(ddof=1)) / e.prompts**0.5
        return {"eval/reward": float(reward.mean()), "eval/stderr": stderr, "eval/samples": len(reward)} | probed

    def prompts(self, step: int) -> Tensor:
        """The step's prompts, one row per sample: the pool is walked in a new order each time round."""
        n, per_step = len(self.train_prompts), self.config.rollout.prompts
        places = range(step * per_step, (step + 1) * per_step)
        orders = {e: torch.randperm(n, generator=generator(self.config.seed, "prompts", e)) for e in {p // n for p in places}}
        chosen = self.train_prompts[torch.stack([orders[p // n][p % n] for p in places])]
        return chosen.repeat_interleave(self.config.rollout.group_size, dim=0).to(device())

    def state(self) -> tuple[int, dict[str, Tensor]]:
        """(optimizer steps, what was sampled ahead of its use): all that is neither the actor's nor a function of the step."""
        return self.updates, self.queue.state()

    def restore(self, updates: int, rollouts: dict[str, Tensor]) -> None:
        self.updates = updates
        self.queue.restore({name: tensor.to(device()) for name, tensor in rollouts.items()})

    @contextmanager
    def clock(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - began

