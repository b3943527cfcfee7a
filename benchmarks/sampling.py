"""Tokens per second of Faultline's local engine and of transformers' `generate`, with the same weights and prompts.

The default run's model samples two batches: the run's own, where samples of a prompt share the work on their common tokens, and
one sample each of different prompts. In the other cases no two prompts and hardly any two responses are equal, and `generate`
has a static cache. All responses have the full length.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from benchmarks.measure import Case
from harness.build import build_task
from harness.compose import compose
from harness.config import PrecisionConfig, parse
from harness.models import DTYPES, build, qwen3_config, qwen3_sizes
from harness.rollouts.local import LocalEngine
from harness.seeding import generator
from harness.train.warmstart import start

SMOLLM2, PROMPT = Path("models/smollm2"), 32
SMALL = qwen3_sizes(hidden=64, layers=3, heads=2, kv_heads=1, head=32, mlp=192)
STATIC = {"cache_implementation": "static", "disable_compile": True}


def cases() -> Iterator[Case]:
    """Generate cases of the default run's starting policy, of a small random model at three lengths, and of SmolLM2."""
    config = parse(compose("tracking=disabled"))
    net, prompts, held_out = start(config, task := build_task(config))
    asked, samples = config.rollout.prompts, config.rollout.group_size
    batches = {
        f"{asked} prompts x {samples}": prompts[:asked].repeat_interleave(samples, 0),
        "1 of each prompt": torch.cat([prompts, held_out]),
    }
    for compute in ("fp32", "bf16"):
        for what, rows in batches.items():
            yield _case(f"the default run, {compute}, {what}", net.to(DTYPES[compute]), compute, rows, task.answer_length)
    net = build(qwen3_config(SMALL, 512, PROMPT + 1000), 0)
    for length in (10, 100, 1000):
        yield _case(f"a small model, 64 responses of {length} tokens", net, "fp32", _different(net, 64), length, **STATIC)
    for compute in ("fp32", "bf16") if SMOLLM2.exists() else ():
        net = AutoModelForCausalLM.from_pretrained(SMOLLM2, dtype=DTYPES[compute], attn_implementation="sdpa")
        for rows in (8, 32):
            yield _case(f"SmolLM2, {compute}, {rows} responses", net, compute, _different(net, rows), 24, **STATIC)


def _different(net: Any, rows: int) -> Tensor:
    """Random prompts, token ids [rows, PROMPT] from the vocabulary of `net`, hardly any two of which are equal."""
    return torch.randint(3, net.config.vocab_size, (rows, PROMPT), generator=generator(0, "bench"))


def _case(name: str, net: Any, compute: str, prompts: Tensor, length: int, **settings: object) -> Case:
    """Return a case of the local engine and transformers in dtype `compute`. settings: further arguments of `generate`."""
    engine = LocalEngine(net.config, PrecisionConfig(name=compute, compute=compute, weights=None, activations=None))
    engine.load_weights(net.eval().named_parameters(), 0)
    uniforms = torch.rand(len(prompts), length, generator=generator(1, "bench"))
    whole = {"do_sample": True, "top_k": 0, "max_new_tokens": length, "eos_token_id": None, "pad_token_id": 0}
    generate = torch.inference_mode()(net.generate)
    theirs = partial(generate, prompts, attention_mask=torch.ones_like(prompts), **whole, **settings)
    runs = {"local": partial(engine.generate, prompts, uniforms), "transformers": theirs}
    return Case(name, runs, rounds=4, tokens=uniforms.numel())
