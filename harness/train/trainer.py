"""One training step of a run, from prompts to optimizer steps. `harness.run.loop` repeats and records it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from harness.build import Plan
from harness.files import EventLog
from harness.models import device
from harness.seeding import seed_globals
from harness.train.data.rewards import COEF
from harness.train.evaluate import Evaluator
from harness.train.learner import Learner
from harness.train.model.actor import Saved
from harness.train.options.observers import Finished, observers
from harness.train.parts import build_parts
from harness.train.persistence import Persistence
from harness.train.routing.metrics import routing_metrics

PERSISTENCE, ENGINE = "persistence.", "engine."
"""Prefixes of the checkpoint keys under which the tensors of `Persistence`, and those of the rollout engine, are saved."""


class Trainer:
    """Runs training steps with a sampler, scorer, learner and evaluator around one actor, and a critic if asked for.

    Life cycle: a new trainer is at the start of the run, unless `restore` moves it to a later step. Then `step` is called for
    each step in order. After the last step `load_weights` and `evaluate` judge the final weights.
    """

    def __init__(self, plan: Plan, folder: EventLog):
        self.config, self.folder = plan.config, folder
        if plan.task.counts:
            folder.log_event("prompts", 0, **plan.task.counts)
        self.actor, self.critic, self.sampler, self.scorer, self.assemble, held_out = build_parts(plan)
        self.learner = Learner(plan, self.actor)
        self.evaluator = Evaluator(plan, self.sampler, self.scorer, held_out)
        self.persistence = Persistence(self.config, self.sampler, self.scorer, held_out)
        self.observers = observers(plan, folder, self.actor.optimizer)
        self.clock = self.sampler.clock

    def step(self, step: int) -> dict[str, float]:
        """Run step number `step`: rollout, rewards, log π_old, advantages, correction, optimizer steps. Returns its metrics."""
        sampler, learner = self.sampler, self.learner
        self.clock.restart()
        seed_globals(self.config.seed, step)
        metrics: dict[str, Any] = self.load_weights()
        if step % self.config.evaluation.every == 0:
            metrics |= self.evaluate(step)
        metrics |= self.persistence.measure(step)
        responses = sampler.sample(step)
        sampler.rest()
        order = learner.minibatch_order(step)
        with self.clock.phase("score"):
            scores = self.scorer.score(responses, order)
            if self.config.diagnostics.due(step):
                metrics |= routing_metrics(self.scorer, responses, scores, order)
        made, shaped = self.assemble(responses, scores)
        metrics |= sampler.describe(responses) | shaped
        with self.clock.phase("train"):
            if self.critic is not None:
                metrics |= self.critic.update(made, order)
            if step >= self.config.critic.warmup_steps:
                updated, logp = learner.update(made, order, complete=self.config.diagnostics.due(step))
                metrics |= updated
            else:
                logp = learner.logp(made, order)
        metrics |= learner.diagnose(made, logp, step)
        for observe in self.observers:
            metrics |= observe(Finished(step, responses, made, order, logp))
        return {name: float(value) for name, value in metrics.items()} | self.clock.metrics()

    def load_weights(self) -> dict[str, float]:
        """Load the actor's weights into rollout engine and trainer's own policy. Returns metrics of a check of the engine."""
        metrics = self.sampler.load_weights(self.learner.updates)
        self.scorer.load_weights(self.learner.updates)
        return metrics

    def evaluate(self, step: int) -> dict[str, float]:
        """Evaluate the policies of evaluation.policy and the precisions of evaluation.probe; record each prompt's reward."""
        with self.clock.phase("evaluate"):
            metrics, questions = self.evaluator.judge()
            self.folder.log_questions(step, {f"{split}/{policy}": means.tolist() for (split, policy), means in questions.items()})
            return metrics | self.evaluator.probe(self.learner.updates)

    @property
    def models(self) -> dict[str, Saved]:
        """The models that a checkpoint holds (actor, perhaps critic), by folder name. Each is saved with its optimizer."""
        return {"actor": self.actor} | ({"critic": self.critic} if self.critic is not None else {})

    def state(self) -> tuple[int, dict[str, Tensor]]:
        """Return (number of optimizer steps, tensors): all state but that of `models` and what the step number determines."""
        prefixed = {PERSISTENCE: self.persistence.state(), ENGINE: self.sampler.engine.state()}
        own = {f"{prefix}{name}": tensor for prefix, tensors in prefixed.items() for name, tensor in tensors.items()}
        return self.learner.updates, self.sampler.state() | own | self.assemble.penalty.state()

    def restore(self, updates: int, tensors: dict[str, Tensor]) -> None:
        """Restore the number of optimizer steps, and the tensors (such as waiting rollouts) that a checkpoint kept."""
        self.learner.updates = updates
        tensors = {name: tensor.to(device()) for name, tensor in tensors.items()}
        for prefix, part in ((PERSISTENCE, self.persistence), (ENGINE, self.sampler.engine)):
            own = {name for name in tensors if name.startswith(prefix)}
            part.restore({name.removeprefix(prefix): tensors.pop(name) for name in own})
        self.assemble.penalty.restore(tensors.pop(COEF, None))
        self.sampler.restore(tensors)
