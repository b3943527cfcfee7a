"""Gradients of a checkpoint's policy: estimates on batches of the rollout engine, the true one on samples of the policy."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor

from algos.batch import Batch
from algos.corrections.spec import Correction
from algos.objective import Objective
from faultline.tools.gradient.estimate import Grams, drowned
from faultline.tools.gradient.methods import Method, coefficients, load_loss
from faultline.tools.gradient.paired import Paired
from faultline.tools.gradient.policy import GradientPolicy, Rows
from harness.config import HubConfig
from harness.errors import UserError
from harness.models import build, hub_model
from harness.progress import Progress
from harness.rollouts import RolloutEngine
from harness.rollouts.recorded import Recorded
from harness.seeding import generator
from harness.tasks import EnvironmentTask
from harness.train.data.batch import Scores
from harness.train.data.responses import Responses
from harness.train.parts import Parts


class Drawn(NamedTuple):
    """A sampled batch. rows: input of the network. replay: experts and sampling masks of the engine. batch: input of losses."""

    rows: Rows
    replay: Recorded | None
    batch: Batch


class SampledGradients:
    """Computes gradients in fp32 of the actor's policy at a checkpoint. prompts: number of training prompts per batch.

    seed: seed of the choice of prompts and of sampling. layers: number of upper blocks whose gradient is taken; None: all.
    Raises UserError on a run without the trainer's own policy as a sampler, and on a task with an environment.
    """

    def __init__(self, parts: Parts, prompts: int, seed: int, layers: int | None = None):
        self.sampler, self.scorer, self.assemble = parts.sampler, parts.scorer, parts.assemble
        self.seed, self.config = seed, parts.sampler.config
        config, task, pool = self.config, parts.sampler.task, parts.sampler.prompts
        if parts.scorer.policy is None:
            raise UserError(
                "gradient: samples from the trainer's own policy; give a run with actor.scoring=exact or evaluation.policy=own"
            )
        if config.actor.lora is not None:
            raise UserError("gradient: takes the gradient of all weights, and this run trains adapters; give another run")
        if isinstance(task, EnvironmentTask):
            raise UserError(f"gradient: task={config.task.name} has an environment, which is not asked here; give another run")
        self.prompts = pool[torch.randperm(len(pool), generator=generator(seed, "laboratory prompts"))[:prompts]]
        self.assemble.penalty.freeze()
        self.sampler.load_weights(0)
        self.scorer.load_weights(0)
        shape = parts.scorer.plan.shape
        net = hub_model(config.model) if isinstance(config.model, HubConfig) else build(shape, config.seed)
        self.policy = GradientPolicy(net, config.rollout.temperature, layers)
        self.policy.load({name: weight.detach().float().cpu() for name, weight in parts.actor.weights()})

    def compare(self, methods: list[Method], batches: int, reference: int) -> pd.DataFrame:
        """Table with a row per gradient estimator: `Grams.summary`, kind and bound of correction. Equal rows are computed once.

        batches: number of batches from the rollout engine, shared by all. reference: number of batches of the trainer's own
        policy, whose policy gradient is the truth. Progress is printed every few seconds. Raises UserError if noise hides the
        reference.
        """
        progress = Progress(reference + batches * len(methods))
        c = self.config
        pg = Objective(load_loss("pg"), Correction(), "old", c.reduce.mode, c.reduce.norm)
        own = self._drawn(self.scorer.own_policy, "laboratory reference", reference, "the trainer's own policy")
        for n, drawn in enumerate(own):  # sampled by the trainer's own policy, so μ is π_old
            assert drawn.batch.logp_old is not None
            own[n] = drawn._replace(batch=drawn.batch._replace(logp_rollout=drawn.batch.logp_old))
        truth = self._gradients(own, [coefficients(pg, drawn.batch) for drawn in own], progress, "reference")
        if drowned(truth):
            raise UserError("the reference gradient drowns in its own noise: raise --reference or --prompts")
        frozen = self._frozen(batches)
        summaries: dict[bytes, dict[str, float]] = {}
        rows = []
        for number, method in enumerate(methods, 1):
            parts = [coefficients(method.objective, drawn.batch) for drawn in frozen]
            key = b"".join(part.numpy().tobytes() for part in parts)
            if key not in summaries:
                what = f"method {number}/{len(methods)}, {method.name}"
                summaries[key] = Grams(self._gradients(frozen, parts, progress, what), truth).summary()
            else:
                progress.skip(batches)
            rows.append({"method": method.name, **summaries[key], "family": method.family, "bound": method.bound})
        return pd.DataFrame(rows)

    def paired(self, methods: list[Method], batches: int) -> pd.DataFrame:
        """Table of `Paired.summary` by estimator, all on the same batches. `methods` begins with: exact weight, no correction."""
        progress = Progress(batches * len(methods))
        frozen = self._frozen(batches)
        responses = len(self.prompts) * self.config.rollout.group_size

        def gradients(number: int) -> Tensor:
            method = methods[number]
            parts = [coefficients(method.objective, drawn.batch) for drawn in frozen]
            return self._gradients(frozen, parts, progress, f"method {number + 1}/{len(methods)}, {method.name}")

        exact, none = gradients(0), gradients(1)
        found = [Paired(part, none, exact, responses).summary() for part in (exact, none)]
        found += [Paired(gradients(number), none, exact, responses).summary() for number in range(2, len(methods))]
        return pd.DataFrame([{"method": method.name, **row} for method, row in zip(methods, found, strict=True)])

    def _frozen(self, batches: int) -> list[Drawn]:
        return self._drawn(self.sampler.engine, "laboratory batch", batches, "the rollout engine")

    def _drawn(self, engine: RolloutEngine, purpose: str, batches: int, source: str) -> list[Drawn]:
        print(f"drawing {batches} batches from {source}", flush=True)
        progress, drawn = Progress(batches), []
        for number in range(batches):
            drawn.append(self._draw(engine, purpose, number))
            progress.show(f"batch {number + 1}/{batches}")
        return drawn

    def _gradients(self, batches: list[Drawn], parts: list[Tensor], progress: Progress, what: str) -> Tensor:
        """Gradient ∇ Σ c·log π_θ of each batch, [batches, parameters]. parts: coefficients c [B, T] of each batch."""
        rows = []
        for number, (drawn, c) in enumerate(zip(batches, parts, strict=True), 1):
            rows.append(self.policy.gradient(drawn.rows, c))
            progress.show(f"{what}, batch {number}/{len(batches)}")
        return torch.stack(rows)

    def _draw(self, engine: RolloutEngine, purpose: str, number: int) -> Drawn:
        """Draw a batch with the run's number of samples per prompt into host memory. purpose, number: parts of the seed.

        Advantages are computed by the run's settings, reward penalties included. π_old takes the experts and the sampling masks
        (top-k, top-p) of the engine as in the run. routing.replay=r2 replays nothing, because there is only one set of weights.
        """
        sampler, scorer = self.sampler, self.scorer
        prompts = self.prompts.repeat_interleave(self.config.rollout.group_size, dim=0)
        uniforms = torch.rand(len(prompts), sampler.task.answer_length, generator=generator(self.seed, purpose, number))
        responses = sampler.sample_by(engine, prompts, uniforms)
        tokens = responses.rollout.tokens
        replay = scorer.replayed(responses.rollout) if engine is sampler.engine else None
        logp = scorer.score_by(scorer.own_policy, prompts, tokens, replay)
        reference = self._reference(responses, logp, replay) if self.config.kl.place == "reward" else None
        batch = self.assemble(responses, Scores(logp, None, reference, replay))[0].batch
        replay = None if replay is None else replay.map(Tensor.cpu)
        rows = self.policy.rows(prompts.cpu(), tokens.cpu(), replay)
        return Drawn(rows, replay, Batch._make(None if part is None else part.cpu() for part in batch))

    def _reference(self, responses: Responses, logp: Tensor, replay: Recorded | None) -> Tensor:
        """Return log π_ref [B, T] in nats, from which log π_old differs as in the run. logp: log π_old by an engine.

        Where a forward pass scores both in the run, it does here, and the difference is taken off `logp`.
        """
        every = [torch.arange(len(logp))]
        reference = self.scorer.score_reference(responses, every)
        assert reference is not None  # the run has a KL term
        if self.scorer.frozen is None:
            return reference
        return logp + reference - self.scorer.score_forward(responses, every, replay)
