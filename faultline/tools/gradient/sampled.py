"""Gradients of a checkpoint's policy: of each method on frozen batches, and of fresh samples of the policy itself."""

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
from harness.config import SizesConfig
from harness.errors import UserError
from harness.models import build
from harness.progress import Progress
from harness.rollouts import RolloutEngine
from harness.rollouts.recorded import Recorded, unpack
from harness.seeding import generator
from harness.train.collector import Collector
from harness.train.replayed import replayed
from harness.train.routing import ARGUMENT, RoutingHooks


class Drawn(NamedTuple):
    """One batch: prompts [B, P], tokens [B, T], what to replay if anything, and the batch that the methods read."""

    prompts: Tensor
    tokens: Tensor
    replay: Recorded | None
    batch: Batch


class SampledGradients:
    """Gradients in fp32 of the policy that a collector holds, on `prompts` of its prompts."""

    def __init__(self, collector: Collector, prompts: int, seed: int):
        self.collector, self.seed, config = collector, seed, collector.config
        if collector.policy is None or collector.task.stop or not isinstance(config.model, SizesConfig):
            raise UserError(
                "gradient: takes runs of the embedded task and model with actor.scoring=exact or evaluation.policy=own, since it "
                "samples from the trainer's own policy and handles no padding"
            )
        pool = collector.prompts
        self.prompts = pool[torch.randperm(len(pool), generator=generator(seed, "laboratory prompts"))[:prompts]]
        collector.load_weights(0)
        self.net = build(collector.shape, config.seed).eval()
        self.net.load_state_dict({name: w.detach().float().cpu() for name, w in collector.actor.weights()})
        RoutingHooks(self.net)

    def compare(self, methods: list[Method], batches: int, reference: int) -> pd.DataFrame:
        """A row per method: `Grams.summary`, family and bound. Methods of equal coefficients are computed once.

        batches: number of frozen batches from the rollout engine. reference: number of batches of the trainer's own policy,
        whose policy gradient is the truth. Prints its progress every few seconds.
        """
        progress = Progress(reference + batches * len(methods))
        c = self.collector.config
        pg = Objective(load_loss("pg"), Correction(), "old", c.reduce.mode, c.reduce.norm)
        print(f"drawing {reference} batches from the trainer's own policy", flush=True)
        own = [self._draw(self.collector.own_policy, "laboratory reference", i) for i in range(reference)]
        own = [drawn._replace(batch=_on_policy(drawn.batch)) for drawn in own]
        truth = self._gradients(own, [coefficients(pg, drawn.batch) for drawn in own], progress, "reference")
        if drowned(truth):
            raise UserError("the reference gradient drowns in its own noise: raise --reference or --prompts")
        print(f"drawing {batches} batches from the rollout engine", flush=True)
        frozen = [self._draw(self.collector.engine, "laboratory batch", i) for i in range(batches)]
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

    def _gradients(self, batches: list[Drawn], parts: list[Tensor], progress: Progress, what: str) -> Tensor:
        """∇ Σ c·log π_θ of each batch, [batches, parameters]."""
        parameters, temperature = list(self.net.parameters()), self.collector.config.rollout.temperature
        rows = []
        for number, (drawn, c) in enumerate(zip(batches, parts, strict=True), 1):
            ids, length = torch.cat([drawn.prompts, drawn.tokens], dim=1), drawn.tokens.shape[1]
            routes, support = drawn.replay or Recorded()
            routed = {} if routes is None else {ARGUMENT: routes}
            logits = self.net(input_ids=ids[:, :-1], use_cache=False, logits_to_keep=length, **routed).logits
            if support is not None:
                logits = logits.masked_fill(~unpack(support, logits.shape[-1]), -torch.inf)
            logp = (logits / temperature).log_softmax(-1).gather(-1, drawn.tokens[..., None])[..., 0]
            gradient = torch.autograd.grad((c.float() * logp).sum(), parameters)
            rows.append(torch.cat([part.flatten() for part in gradient]))
            progress.show(f"{what}, batch {number}/{len(batches)}")
        return torch.stack(rows)

    def _draw(self, engine: RolloutEngine, purpose: str, number: int) -> Drawn:
        """A batch of the run's number of samples per prompt, all of it in host memory. What π_old replays of the rollout
        engine, experts and sampling masks, is replayed as in the run; r2 replays nothing at one set of weights."""
        collector = self.collector
        prompts = self.prompts.repeat_interleave(collector.config.rollout.group_size, dim=0)
        uniforms = torch.rand(len(prompts), collector.task.answer_length, generator=generator(self.seed, purpose, number))
        sampled = collector.sample_by(engine, prompts, uniforms)
        tokens = sampled.rollout.tokens
        replay = replayed(sampled.rollout, collector.config) if engine is collector.engine else None
        logp = collector.score_by(collector.own_policy, prompts, tokens, replay)
        batch = Batch(
            sampled.rollout.logp, sampled.rollout.mask, logp, collector.credit(sampled).advantages, prompt=sampled.prompt_numbers
        )
        replay = None if replay is None else replay.map(Tensor.cpu)
        return Drawn(prompts.cpu(), tokens.cpu(), replay, Batch._make(None if part is None else part.cpu() for part in batch))


def _on_policy(batch: Batch) -> Batch:
    """The batch as if the trainer's own policy had sampled it by the log-probabilities that it reports."""
    assert batch.logp_old is not None
    return batch._replace(logp_rollout=batch.logp_old)
