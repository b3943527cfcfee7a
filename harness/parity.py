"""Agreement of actor, local engine and vLLM on equal tokens and weights, in every precision: `faultline doctor --parity`.

vLLM samples the tokens if it can compute in the precision, else the local engine does. The others score them. The actor is the
fp32 trainer. The table has a row per pair (a, b): with Δ = log-probability under a − that under b, the mean and largest |Δ| in
nats, and K3 = mean(exp Δ − 1 − Δ).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PretrainedConfig

from harness.config import ActorConfig, PrecisionConfig
from harness.errors import UserError
from harness.models import build, device, qwen3_config, qwen3_sizes
from harness.precisions import PRECISIONS
from harness.progress import Progress
from harness.rollouts import Sampling
from harness.rollouts.local import LocalEngine
from harness.rollouts.vllm import VllmEngine
from harness.rollouts.vllm_support import slow_formats
from harness.train.model.actor import DeepSpeedActor

SIZES = qwen3_sizes(hidden=128, layers=3, heads=4, kv_heads=2, head=32, mlp=256)  # multiples of 128: FP8 in blocks
VOCABULARY, PROMPT, RESPONSE, ROWS = 64, 8, 32, 128
SLOW_ROWS = 16
"""Responses in a precision that vLLM computes slowly here: 128 take it two minutes, 16 give the same mean to a tenth."""
SHARPNESS = 2.0
"""Factor on the random weight matrices. It lowers the entropy from that of a uniform policy to that of a trained one."""

NORMAL = {(name, "compute"): row.normal for name, row in PRECISIONS.items() if row.normal is not None} | {
    ("bf16", "fp8_e4m3"): 0.1,
    ("bf16", "fp8_e5m2"): 0.2,
}
"""(precision, kv_cache) -> largest mean |difference| of log-probabilities, in nats, of two engines that agree, on the model of
this module: about three times the measured value (experiments/RESULTS.md). For fp32 it also bounds each single difference."""


class Pair(NamedTuple):
    """Comparison of two engines. mean, largest: |Δ log-probability| in nats. refused: why vLLM is absent, or None."""

    precision: str
    kv_cache: str
    pair: str
    mean: float
    largest: float
    k3: float
    refused: str | None

    @property
    def normal(self) -> bool:
        """Whether two engines' mean log-probability difference is within its bound in NORMAL; for fp32, the largest too."""
        bound = NORMAL[self.precision, self.kv_cache]
        return self.mean <= bound and (self.precision != "fp32" or self.largest <= bound)


def parity(precisions: dict[str, PrecisionConfig], actor: ActorConfig) -> Iterator[Pair]:
    """Yield the comparison of every pair of engines in every precision of NORMAL. precisions: name -> its config."""
    net = build(qwen3_config(SIZES, VOCABULARY, PROMPT + RESPONSE), 0)
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.ndim > 1:
                parameter.mul_(SHARPNESS)
    trainer = DeepSpeedActor(net, actor)
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, VOCABULARY, (ROWS, PROMPT), generator=generator).to(device())
    uniforms = torch.rand(ROWS, RESPONSE, generator=generator)
    progress = Progress(len(NORMAL))
    for name, kv_cache in NORMAL:
        engines, refused = _engines(net.config, precisions[name], kv_cache)
        if not engines:
            progress.skip(1)
            continue
        for engine in engines.values():
            engine.load_weights(trainer.weights(), 0)
        sampler = "vllm" if "vllm" in engines else "local"
        rows = SLOW_ROWS if sampler == "vllm" and name in slow_formats() else ROWS
        asked = prompts[:rows]
        rollout = engines[sampler].generate(asked, uniforms[:rows])
        with torch.no_grad():
            logp = {"actor": trainer.logp(asked, rollout.tokens)[0]}
        logp |= {"local": engines["local"].score(asked, rollout.tokens)} if "local" in engines else {}
        logp[sampler] = rollout.logp
        for engine in engines.values():
            engine.close()
        for a, b in combinations(logp, 2):
            yield Pair(name, kv_cache, f"{a} – {b}", *_difference(logp[a], logp[b]), refused)
        progress.show(f"{name}, cache {kv_cache}")


def _engines(shape: PretrainedConfig, precision: PrecisionConfig, kv_cache: str) -> tuple[dict[str, Any], str | None]:
    """Build the engines that can compute in the precision, by name. Also returns why vLLM is not among them, or None."""
    kinds: dict[str, Any] = {"local": LocalEngine, "vllm": VllmEngine}
    engines, refusal = {}, None
    for name, kind in kinds.items():
        try:
            kind.check(shape, precision, kv_cache)
        except UserError as error:
            refusal = str(error) if name == "vllm" else None
        else:
            settings: dict[str, Any] = {"kv_cache_gib": 0.25, "eager": True} if name == "vllm" else {}
            engines[name] = kind(shape, precision, Sampling(kv_cache=kv_cache), **settings)
    return engines, refusal


def _difference(a: Tensor, b: Tensor) -> tuple[float, float, float]:
    delta = a.double() - b.double()
    return delta.abs().mean().item(), delta.abs().max().item(), (torch.expm1(delta) - delta).mean().item()
