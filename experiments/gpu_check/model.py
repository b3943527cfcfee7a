"""The policy that the GPU checks use, and its responses, sampled by each rollout engine in each precision."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algos.batch import Batch
from algos.diagnostics.mismatch import mismatch
from algos.ratios import log_ratio
from harness.build import build_task
from harness.compose import compose
from harness.config import Config, parse
from harness.models import device, hub_model, synchronize
from harness.rollouts import ENGINES, Rollout, RolloutEngine, Sampling
from harness.seeding import generator
from harness.tasks import PAD

KV_CACHE_GIB = 1.0
"""Memory of the KV cache of each vLLM engine, in GiB. On a CPU vLLM keeps it until the process ends."""
ARMS = {
    **{name: (name, "compute") for name in ("fp32", "bf16", "fp16", "fp8_tensor", "fp8_channel", "fp8_block", "int8", "nvfp4")},
    "bf16 e4m3 cache": ("bf16", "fp8_e4m3"),
}
"""Settings of each sampled precision, by its name in the tables: (option of rollout/precision, value of rollout.kv_cache)."""


class Size(NamedTuple):
    """The amount of computation in the GPU checks.

    model: a folder that transformers loads. responses: their number per precision, in groups of four. answer: maximum tokens of
    a response. steps: number of RL steps. arms: keys of ARMS, the precisions whose mismatch is measured. overrides: further
    config overrides.
    """

    model: str = "models/smollm2"
    responses: int = 512
    answer: int = 64
    steps: int = 3
    arms: tuple[str, ...] = tuple(ARMS)
    overrides: tuple[str, ...] = ()

    def config(self, *more: str) -> Config:
        """The config of experiment=smollm2/bf16 with the model, response length and overrides of this size, and `more`."""
        sizes = (f"model.path={self.model}", f"task.answer_length={self.answer}", "tracking=disabled", *self.overrides)
        return parse(compose("+experiment=smollm2/bf16", *sizes, *more))


class Scored(NamedTuple):
    """Responses [B, T] of an engine, the seconds of sampling, and the trainer's log π in nats. mask: not PAD, log μ finite."""

    engine: str
    arm: str
    rollout: Rollout
    logp: Tensor
    mask: Tensor
    seconds: float

    @property
    def log_ratio(self) -> Tensor:
        """The log ratio log π − log μ of trainer and sampler for each token [B, T]; 0 outside the mask."""
        return log_ratio(self.logp, self.rollout.logp, self.mask)

    @property
    def batch(self) -> Batch:
        """The responses as a batch, which the diagnostics take."""
        return Batch(self.rollout.logp, self.mask, self.logp)

    @property
    def statistics(self) -> dict[str, float]:
        """Mismatch diagnostics of the responses, by the names of a run's metrics without the part before the slash."""
        return {name.split("/")[1]: float(value) for name, value in mismatch(self.batch).items()}


class Policy:
    """The checked model's weights, its prompts (each four times, for a group of responses), and the trainer's fp32 policy."""

    def __init__(self, size: Size):
        self.size, self.run = size, size.config()
        self.task = build_task(self.run)
        self.net = hub_model(self.run.model).to(device())
        pool = torch.from_numpy(self.task.prompts())
        asked = pool[torch.arange(size.responses // 4) % len(pool)].repeat_interleave(4, 0)
        self.prompts = asked.to(device())
        self.uniforms = torch.rand(len(asked), size.answer, generator=generator(0, "checks"))
        self.own = self.engine("local", "fp32")

    def engine(self, kind: str, precision: str, kv_cache: str = "compute") -> Any:
        """Build an engine (local or vllm) with the policy's weights. Raises UserError if this machine does not support it."""
        chosen = self.size.config(f"rollout/precision={precision}").rollout.precision
        ENGINES[kind].check(self.net.config, chosen, kv_cache)
        context = self.prompts.shape[1] + self.size.answer
        cache = {"context": context, "kv_cache_gib": KV_CACHE_GIB, "eager": True} if kind == "vllm" else {}
        engine = ENGINES[kind](self.net.config, chosen, Sampling(kv_cache=kv_cache, stop=self.task.stop), **cache)
        engine.load_weights(self.net.named_parameters(), 0)
        return engine

    def scored(self, kind: str, arm: str) -> Scored:
        """Sample with `kind` (local or vllm) as ARMS[arm] says, score with the trainer. Raises UserError if `kind` refuses."""
        return self.responses(self.engine(kind, *ARMS[arm]), kind, arm)

    def responses(self, engine: RolloutEngine, kind: str, arm: str) -> Scored:
        """Sample with `engine`, close it, and score with the trainer. kind, arm: names in the result."""
        if device().type == "cuda":  # kernels are chosen and loaded at their first call
            engine.generate(self.prompts, self.uniforms)
        synchronize()
        began = time.perf_counter()
        rollout = engine.generate(self.prompts, self.uniforms)
        synchronize()
        seconds = time.perf_counter() - began
        engine.close()
        mask = (rollout.tokens != PAD) & rollout.logp.isfinite()
        return Scored(kind, arm, rollout, self.own.score(self.prompts, rollout.tokens), mask, seconds)
