"""Part of `make bench`: tokens per second of CPU time of the local engine and of transformers' `generate` with a static cache."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from harness.config import PrecisionConfig
from harness.models import DTYPES
from harness.rollouts.local import LocalEngine
from harness.seeding import generator

MODEL = Path("models/smollm2")
ROWS, PROMPT, LENGTH, ROUNDS = (8, 32), 32, 24, 4


def main() -> None:
    """Print a line per dtype and number of responses; the first round, which loads kernels, is left out."""
    if not MODEL.exists():
        print(f"\n{MODEL} is not there (`make llm`): the speed of sampling from it is not measured")
        return
    print(f"\nSmolLM2, prompts of {PROMPT} tokens, responses of {LENGTH}, tokens per second of CPU time:")
    for compute in ("fp32", "bf16"):
        net = AutoModelForCausalLM.from_pretrained(MODEL, dtype=DTYPES[compute], attn_implementation="sdpa").eval()
        engine = LocalEngine(net.config, PrecisionConfig(name=compute, compute=compute, weights=None, activations=None))
        engine.load_weights(net.named_parameters(), 0)
        for rows in ROWS:
            prompts = torch.randint(3, net.config.vocab_size, (rows, PROMPT), generator=generator(0, "bench"))
            speed = _measure(_local(engine, prompts), _transformers(net, prompts), rows)
            print(
                f"  {compute}, {rows} responses: local {speed[0]:.0f}, transformers {speed[1]:.0f}, "
                f"ratio {speed[0] / speed[1]:.2f}",
                flush=True,
            )


def _local(engine: LocalEngine, prompts: torch.Tensor) -> Callable[[], object]:
    uniforms = torch.rand(len(prompts), LENGTH, generator=generator(1, "bench"))
    return lambda: engine.generate(prompts, uniforms)


def _transformers(net, prompts: torch.Tensor) -> Callable[[], object]:
    settings = {
        "max_new_tokens": LENGTH, "do_sample": True, "top_k": 0, "eos_token_id": None, "pad_token_id": 0,
        "cache_implementation": "static", "disable_compile": True,
    }  # fmt: skip

    def run() -> object:
        with torch.inference_mode():
            return net.generate(prompts, attention_mask=torch.ones_like(prompts), **settings)

    return run


def _measure(first: Callable[[], object], second: Callable[[], object], rows: int) -> tuple[float, float]:
    """Tokens per second of the best round of each; the two take turns, so that both meet the same neighbours."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for run, seconds in zip((first, second), times, strict=True):
            began = time.process_time()
            run()
            seconds.append(time.process_time() - began)
    best = [min(seconds[1:]) for seconds in times]
    return rows * LENGTH / best[0], rows * LENGTH / best[1]


if __name__ == "__main__":
    main()
