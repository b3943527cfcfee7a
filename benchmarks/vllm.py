"""Tokens per second of vLLM and Faultline's local engine by wall clock, in one process, and the time to sync weights."""

import time
from collections.abc import Iterator
from functools import partial
from itertools import count

import torch
from transformers import PreTrainedModel

from benchmarks.measure import Case
from harness.compose import compose
from harness.config import parse
from harness.models import build, qwen3_config, qwen3_sizes
from harness.rollouts import RolloutEngine
from harness.rollouts.local import LocalEngine
from harness.rollouts.vllm import VllmEngine
from harness.rollouts.vllm_support import weight_formats
from harness.seeding import generator

NEEDS = ("vllm",)
MODELS = {
    "the demo's model": (qwen3_sizes(hidden=64, layers=3, heads=2, kv_heads=1, head=32, mlp=192), 256, 16),
    "a larger model": (qwen3_sizes(hidden=512, layers=13, heads=8, kv_heads=4, head=64, mlp=2048), 32, 32),
}
"""Benchmarked models: name -> (sizes of the model, number of responses in a batch, number of tokens per response)."""
VOCABULARY, PROMPT = 64, 4


def cases() -> Iterator[Case]:
    """Generate a case of syncing weights and one of sampling a batch, per model and precision that vLLM has on this machine."""
    for model, (sizes, rows, length) in MODELS.items():
        net = build(qwen3_config(sizes, VOCABULARY, PROMPT + length), 0)
        prompts = torch.randint(0, VOCABULARY, (rows, PROMPT), generator=generator(0, "bench"))
        uniforms = torch.rand(rows, length, generator=generator(1, "bench"))
        for name in ("fp32", "bf16", "fp8_channel"):
            if weight_formats().get(name) is not None:
                continue
            precision = parse(compose(f"rollout/precision={name}")).rollout.precision
            vllm = VllmEngine(net.config, precision, kv_cache_gib=0.5)
            engines = {"vLLM": vllm, "local": LocalEngine(net.config, precision)}
            versions, clock = count(), time.perf_counter
            sync = {who: partial(_sync, engine, net, versions) for who, engine in engines.items()}
            yield Case(f"{model}, {name}, sync", sync, clock=clock)
            batch = {who: partial(engine.generate, prompts, uniforms) for who, engine in engines.items()}
            yield Case(f"{model}, {name}, {rows} responses of {length} tokens", batch, clock=clock, tokens=rows * length)
            vllm.close()


def _sync(engine: RolloutEngine, net: PreTrainedModel, versions: count) -> None:
    engine.load_weights(net.named_parameters(), next(versions))
