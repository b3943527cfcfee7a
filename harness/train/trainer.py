"""One step of a run, on one screen: the way from prompts to an optimizer step. `harness.run.loop` repeats and records it."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor

from harness.build import build_task, has_critic
from harness.config import Config
from harness.files import EventLog
from harness.models import device
from harness.seeding import seed_globals
from harness.train.collector import Collector
from harness.train.critic import Critic
from harness.train.data.dump import dump
from harness.train.data.rewards import COEF
from harness.train.evaluate import Evaluator
from harness.train.learner import Learner
from harness.train.model.actor import DeepSpeedActor, Saved
from harness.train.persistence import Persistence
from harness.train.routing.metrics import routing_metrics
from harness.train.warmstart import start

PERSISTENCE = "persistence."
"""Before the names of its tensors in a checkpoint, beside those of the responses that wait."""


class Trainer:
    """A collector, a learner and an evaluator around one actor, and a critic where the advantages read values.

    Life cycle: built from a config, which is at the start of the run, or `restore`d; then `step` for each step in order. After
    the last step `load_weights` and `evaluate` judge the final weights.
    """

    def __init__(self, config: Config, folder: EventLog):
        self.config, self.folder = config, folder
        task = build_task(config)
        if task.counts:
            folder.log_event("prompts", 0, **task.counts)
        net, train_prompts, held_out = start(config, task)
        own = copy.deepcopy(net) if has_critic(config) else None
        self.actor = DeepSpeedActor(net, config.actor, temperature=config.rollout.temperature)
        self.critic = Critic(own, config) if own is not None else None
        self.collector = Collector(config, self.actor, task, train_prompts, self.critic)
        self.learner = Learner(config, self.actor)
        self.evaluator = Evaluator(config, self.collector, held_out.to(device()))
        self.persistence = Persistence(config, self.collector, held_out.to(device()))
        self.clock = self.collector.clock

    def step(self, step: int) -> dict[str, float]:
        """Prompts → rollout → reward → π_old → advantages → correction → mini-batches of objective and optimizer step."""
        collector, learner = self.collector, self.learner
        self.clock.restart()
        seed_globals(self.config.seed, step)
        metrics: dict[str, Any] = self.load_weights()
        if step % self.config.evaluation.every == 0:
            metrics |= self.evaluate()
        metrics |= self.persistence.measure(step)
        sampled = collector.sample(step)
        order = learner.minibatch_order(step)
        with self.clock.phase("score"):
            scores = collector.score(sampled, order)
            if self.config.diagnostics.due(step):
                metrics |= routing_metrics(collector, sampled, scores, order)
        collected, shaped = collector.collect(sampled, scores)
        responses = collector.describe(sampled, learner.updates)
        with self.clock.phase("train"):
            updated = self.critic.update(collected, order) if self.critic is not None else {}
            if step >= self.config.critic.warmup_steps:
                of_actor, logp = learner.update(collected, order, complete=self.config.diagnostics.due(step))
                updated |= of_actor
            else:
                logp = learner.observe(collected, order)
        # Without a scored π_old the mismatch is that of π_θ as it was trained on.
        batch = collected.batch if scores.old is not None else collected.batch._replace(logp_old=logp)
        diagnosed = learner.diagnose(batch, step)
        collector.queue.drain()
        if self.config.dump.every and step % self.config.dump.every == 0 and collector.ranks.rank == 0:
            dump(self.folder.path, step, sampled, batch, order, logp)
        recorded = metrics | responses | shaped | updated | diagnosed
        return {name: float(value) for name, value in recorded.items()} | self.clock.metrics()

    def load_weights(self) -> dict[str, float]:
        """The actor's weights to the rollout engine and to the trainer's own policy."""
        return self.collector.load_weights(self.learner.updates)

    def evaluate(self) -> dict[str, float]:
        """The held-out reward of the policies that evaluation.policy names, and the probes."""
        with self.clock.phase("evaluate"):
            return self.evaluator.judge() | self.evaluator.probe(self.learner.updates)

    @property
    def models(self) -> dict[str, Saved]:
        """What a checkpoint holds of weights and optimizers, by the names of their folders."""
        return {"actor": self.actor} | ({"critic": self.critic} if self.critic is not None else {})

    def state(self) -> tuple[int, dict[str, Tensor]]:
        """(optimizer steps, tensors): all that is neither of `models` nor a function of the step."""
        fixed = {f"{PERSISTENCE}{name}": tensor for name, tensor in self.persistence.state().items()}
        return self.learner.updates, self.collector.queue.state() | fixed | self.collector.shaping.state()

    def restore(self, updates: int, rollouts: dict[str, Tensor]) -> None:
        """The counterpart of `state`."""
        self.learner.updates = updates
        tensors = {name: tensor.to(device()) for name, tensor in rollouts.items()}
        fixed = {name for name in tensors if name.startswith(PERSISTENCE)}
        self.persistence.restore({name.removeprefix(PERSISTENCE): tensors.pop(name) for name in fixed})
        self.collector.shaping.restore(tensors.pop(COEF, None))
        self.collector.queue.restore(tensors)
