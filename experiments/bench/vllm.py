"""Part of `make bench`: tokens per second of vLLM and of the local engine, taking turns in one process, and seconds per sync."""

from __future__ import annotations

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

MODELS = {
    "the demo's model": (
        ModelConfig(
            name="qwen3",
            hidden_size=64,
            num_hidden_layers=3,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=32,
            intermediate_size=192,
        ),
        256,
        16,
    ),
    "a larger model": (
        ModelConfig(
            name="qwen3",
            hidden_size=512,
            num_hidden_layers=13,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=64,
            intermediate_size=2048,
        ),
        32,
        32,
    ),
}
"""Name -> (sizes, responses, tokens of each)."""
PRECISIONS = {
    "fp32": PrecisionConfig(name="fp32", compute="fp32", weights=None, activations=None),
    "bf16": PrecisionConfig(name="bf16", compute="bf16", weights=None, activations=None),
    "fp8_channel": PrecisionConfig(name="fp8_channel", compute="bf16", weights="fp8_channel", activations="fp8_token"),
}
VOCABULARY, PROMPT, ROUNDS = 64, 4, 3


def main() -> None:
    """Print a line per model and precision."""
    if installed() is None:
        print("\nvLLM is not installed (`make vllm`): its speed is not measured")
        return
    for title, (sizes, rows, length) in MODELS.items():
        net = build(qwen3_config(sizes, VOCABULARY, PROMPT + length), 0)
        count = sum(parameter.numel() for parameter in net.parameters())
        print(f"\n{installed()} and the local engine, {title}, {count:,} parameters, {rows} responses of {length} tokens:")
        prompts = torch.randint(0, VOCABULARY, (rows, PROMPT), generator=generator(0, "bench"))
        uniforms = torch.rand(rows, length, generator=generator(1, "bench"))
        for name, precision in PRECISIONS.items():
            if (refusal := weight_formats().get(name)) is not None:
                print(f"  {name}: vLLM cannot ({refusal})")
                continue
            engines = {
                "vLLM": VllmEngine(net.config, precision, kv_cache_gib=0.5),
                "local": LocalEngine(net.config, precision),
            }
            speed, sync = _measure(engines, net, prompts, uniforms)
            print(
                f"  {name}: vLLM {speed['vLLM']:,.0f} tokens/s, local {speed['local']:,.0f}, ratio "
                f"{speed['vLLM'] / speed['local']:.2f}; sync of vLLM {sync['vLLM']:.3f} s, of local {sync['local']:.3f} s",
                flush=True,
            )
            engines["vLLM"].close()


def _measure(engines: dict[str, RolloutEngine], net, prompts, uniforms) -> tuple[dict[str, float], dict[str, float]]:
    """(tokens a second, seconds a sync), medians; the first round, in which kernels are chosen, does not count."""
    generated: dict[str, list[float]] = {name: [] for name in engines}
    synced: dict[str, list[float]] = {name: [] for name in engines}
    for version in range(ROUNDS + 1):
        for name, engine in engines.items():
            began = time.perf_counter()
            engine.load_weights(net.named_parameters(), version)
            middle = time.perf_counter()
            engine.generate(prompts, uniforms)
            synced[name].append(middle - began)
            generated[name].append(time.perf_counter() - middle)
    return (
        {name: uniforms.numel() / median(times[1:]) for name, times in generated.items()},
        {name: median(times[1:]) for name, times in synced.items()},
    )


if __name__ == "__main__":
    main()
