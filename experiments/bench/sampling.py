"""Part of `make bench`: tokens per second of CPU time of the local engine and of transformers' `generate` with a static cache.

All responses have the full length. No two prompts and hardly two responses are equal, so nothing is shared among the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from experiments.bench.measure import in_turns, ratio
from harness.config import ModelConfig, PrecisionConfig
from harness.models import DTYPES, build, qwen3_config
from harness.rollouts.local import LocalEngine
from harness.seeding import generator

MODEL = Path("models/smollm2")
ROWS, PROMPT, LENGTH, ROUNDS = (8, 32), 32, 24, 4
SMALL = ModelConfig(
    name="qwen3", hidden_size=64, num_hidden_layers=3, num_attention_heads=2,
    num_key_value_heads=1, head_dim=32, intermediate_size=192,
)  # fmt: skip
SMALL_ROWS, SMALL_VOCABULARY, LENGTHS = 64, 512, (10, 100, 1000)


def main() -> None:
    """Print a line per dtype and number or length of responses."""
    torch.set_num_threads(1)
    print("\nsampling against transformers' generate with a static cache, tokens per second of CPU time")
    net = build(qwen3_config(SMALL, SMALL_VOCABULARY, PROMPT + max(LENGTHS)), 0).eval()
    print(f" {sum(w.numel() for w in net.parameters()):,} parameters, {SMALL_ROWS} prompts of {PROMPT} tokens, fp32:")
    for length in LENGTHS:
        print(f"  {length} tokens: {_compared(net, 'fp32', SMALL_ROWS, length)}", flush=True)
    if not MODEL.exists():
        print(f" {MODEL} is not there (`make llm`): the speed of sampling from it is not measured")
        return
    print(f" SmolLM2, prompts of {PROMPT} tokens, responses of {LENGTH}:")
    for compute in ("fp32", "bf16"):
        net = AutoModelForCausalLM.from_pretrained(MODEL, dtype=DTYPES[compute], attn_implementation="sdpa").eval()
        for rows in ROWS:
            print(f"  {compute}, {rows} responses: {_compared(net, compute, rows, LENGTH)}", flush=True)


def _compared(net: Any, compute: str, rows: int, length: int) -> str:
    engine = LocalEngine(net.config, PrecisionConfig(name=compute, compute=compute, weights=None, activations=None))
    engine.load_weights(net.named_parameters(), 0)
    prompts = torch.randint(3, net.config.vocab_size, (rows, PROMPT), generator=generator(0, "bench"))
    uniforms = torch.rand(rows, length, generator=generator(1, "bench"))
    runs = {"local": lambda: engine.generate(prompts, uniforms), "transformers": _transformers(net, prompts, length)}
    seconds = in_turns(ROUNDS, runs)
    local, theirs = (rows * length / median(seconds[name]) for name in ("local", "transformers"))
    return f"local {local:,.0f}, transformers {theirs:,.0f}, {ratio(seconds['transformers'], seconds['local'])} times as fast"


def _transformers(net: Any, prompts: Tensor, length: int) -> Callable[[], object]:
    settings = {
        "max_new_tokens": length, "do_sample": True, "top_k": 0, "eos_token_id": None, "pad_token_id": 0,
        "cache_implementation": "static", "disable_compile": True,
    }  # fmt: skip

    def run() -> object:
        with torch.inference_mode():
            return net.generate(prompts, attention_mask=torch.ones_like(prompts), **settings)

    return run


if __name__ == "__main__":
    main()
