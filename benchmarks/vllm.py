"""Tokens per second of vLLM and of the local engine by the clock, taking turns in one process, and seconds per sync."""

import time
from statistics import median

import torch

from harness.config import ModelConfig, PrecisionConfig
from harness.models import build, qwen3_config
from harness.rollouts import RolloutEngine
from harness.rollouts.local import LocalEngine
from harness.rollouts.vllm import VllmEngine
from harness.rollouts.vllm_support import installed, weight_formats
from harness.seeding import generator

NEEDS = ("vllm",)
DEMO = ModelConfig(
    name="qwen3", hidden_size=64, num_hidden_layers=3, num_attention_heads=2,
    num_key_value_heads=1, head_dim=32, intermediate_size=192,
)  # fmt: skip
LARGER = ModelConfig(
    name="qwen3", hidden_size=512, num_hidden_layers=13, num_attention_heads=8,
    num_key_value_heads=4, head_dim=64, intermediate_size=2048,
)  # fmt: skip
MODELS = {"the demo's model": (DEMO, 256, 16), "a larger model": (LARGER, 32, 32)}
"""Benchmarked models: name -> (sizes, number of responses, tokens of each response)."""
PRECISIONS = [
    PrecisionConfig(name="fp32", compute="fp32", weights=None, activations=None),
    PrecisionConfig(name="bf16", compute="bf16", weights=None, activations=None),
    PrecisionConfig(name="fp8_channel", compute="bf16", weights="fp8_channel", activations="fp8_token"),
]
VOCABULARY, PROMPT, ROUNDS = 64, 4, 3


def main() -> None:
    print(f" {installed()}")
    for title, (sizes, rows, length) in MODELS.items():
        net = build(qwen3_config(sizes, VOCABULARY, PROMPT + length), 0)
        print(f" {title}, {sum(w.numel() for w in net.parameters()):,} parameters, {rows} responses of {length} tokens:")
        prompts = torch.randint(0, VOCABULARY, (rows, PROMPT), generator=generator(0, "bench"))
        uniforms = torch.rand(rows, length, generator=generator(1, "bench"))
        for precision in PRECISIONS:
            if (refusal := weight_formats().get(precision.name)) is not None:
                print(f"  {precision.name}: vLLM cannot ({refusal})")
                continue
            engines = {
                "vLLM": VllmEngine(net.config, precision, kv_cache_gib=0.5),
                "local": LocalEngine(net.config, precision),
            }
            rounds = [{name: _round(engine, net, prompts, uniforms, version) for name, engine in engines.items()}
                      for version in range(ROUNDS + 1)][1:]  # fmt: skip  # kernels are chosen in the first
            (sync, speed), (own_sync, own) = (_medians([turn[name] for turn in rounds], uniforms.numel()) for name in engines)
            print(f"  {precision.name}: vLLM {speed:,.0f} tokens/s, local {own:,.0f}, ratio {speed / own:.2f}; "
                  f"sync of vLLM {sync:.3f} s, of local {own_sync:.3f} s", flush=True)  # fmt: skip
            engines["vLLM"].close()


def _round(engine: RolloutEngine, net, prompts, uniforms, version: int) -> tuple[float, float]:
    """Seconds that an engine takes to sync the weights and to sample, in one round."""
    began = time.perf_counter()
    engine.load_weights(net.named_parameters(), version)
    middle = time.perf_counter()
    engine.generate(prompts, uniforms)
    return middle - began, time.perf_counter() - middle


def _medians(rounds: list[tuple[float, float]], tokens: int) -> tuple[float, float]:
    """Medians over rounds: (seconds per sync, tokens per second)."""
    sync, sampling = map(median, zip(*rounds, strict=True))
    return sync, tokens / sampling
