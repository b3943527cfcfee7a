"""Tokens per second of CPU time of the local engine and of transformers' `generate`, by the same weights and prompts.

The default run's batch is sampled in two ways: as it is, so that samples of a prompt share their common tokens, and as single
samples of different prompts. In the other cases no two prompts and hardly two responses are equal, and `generate` has a static
cache. All responses have the full length.
"""

from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from benchmarks.measure import in_turns, ratio
from harness.build import build_task
from harness.compose import compose
from harness.config import ModelConfig, PrecisionConfig, parse
from harness.models import DTYPES, build, policy_config, qwen3_config
from harness.rollouts.local import LocalEngine
from harness.seeding import generator
from harness.train.warmstart import warm_start

SMOLLM2, ROUNDS, PROMPT = Path("models/smollm2"), 4, 32
SMALL = ModelConfig(
    name="qwen3", hidden_size=64, num_hidden_layers=3, num_attention_heads=2,
    num_key_value_heads=1, head_dim=32, intermediate_size=192,
)  # fmt: skip
STATIC = {"cache_implementation": "static", "disable_compile": True}


def main() -> None:
    default_run()
    length = (10, 100, 1000)
    net = build(qwen3_config(SMALL, 512, PROMPT + max(length)), 0).eval()
    print(f" {sum(w.numel() for w in net.parameters()):,} parameters, 64 prompts of {PROMPT} tokens, fp32, static cache:")
    for tokens in length:
        print(f"  {tokens} tokens: {compared(net, 'fp32', different(net, 64), tokens, **STATIC)}", flush=True)
    print(f" SmolLM2, prompts of {PROMPT} tokens, responses of 24, static cache:")
    for compute in ("fp32", "bf16") if SMOLLM2.exists() else ():
        net = AutoModelForCausalLM.from_pretrained(SMOLLM2, dtype=DTYPES[compute], attn_implementation="sdpa").eval()
        for rows in (8, 32):
            print(f"  {compute}, {rows} responses: {compared(net, compute, different(net, rows), 24, **STATIC)}", flush=True)


def default_run() -> None:
    """Compare both samplers on the default run's starting policy, with the run's batch and with one sample of each prompt."""
    config = parse(compose("tracking=disabled"))
    task = build_task(config)
    start = warm_start(config, task)
    shape, (prompts, samples) = policy_config(config.model, task), (config.rollout.prompts, config.rollout.group_size)
    length = shape.max_position_embeddings - start.train.shape[1]
    print(f" {sum(w.numel() for w in start.state.values()):,} parameters, responses of {length} tokens:")
    batch, single = start.train[:prompts].repeat_interleave(samples, 0), torch.cat([start.train, start.held_out])
    for compute in ("fp32", "bf16"):
        net = build(shape, 0).eval()
        net.load_state_dict(start.state)
        net = net.to(DTYPES[compute])
        for what, rows in ((f"{prompts} prompts x {samples}", batch), ("1 of each prompt", single)):
            print(f"  {compute}, {what}: {compared(net, compute, rows, length)}", flush=True)


def different(net: Any, rows: int) -> Tensor:
    """Random prompts, so that no two are equal, [rows, PROMPT]."""
    return torch.randint(3, net.config.vocab_size, (rows, PROMPT), generator=generator(0, "bench"))


def compared(net: Any, compute: str, prompts: Tensor, length: int, **settings: object) -> str:
    """Sample from the whole distribution by both engines, and compare their speed.

    Decode steps of the local engine compute only the distinct rows.
    """
    engine = LocalEngine(net.config, PrecisionConfig(name=compute, compute=compute, weights=None, activations=None))
    engine.load_weights(net.named_parameters(), 0)
    uniforms = torch.rand(len(prompts), length, generator=generator(1, "bench"))
    whole = {"do_sample": True, "top_k": 0, "max_new_tokens": length, "eos_token_id": None, "pad_token_id": 0}
    theirs = partial(net.generate, prompts, attention_mask=torch.ones_like(prompts), **whole, **settings)
    with torch.inference_mode():
        seconds = in_turns(ROUNDS, {"ours": partial(engine.generate, prompts, uniforms), "theirs": theirs})
        answers = engine.generate(prompts, uniforms).tokens
    ours, slower = (uniforms.numel() / median(seconds[name]) for name in ("ours", "theirs"))
    rows = [len(torch.cat([prompts, answers[:, :t]], 1).unique(dim=0)) for t in range(1, min(length, 100))]
    return (f"local {ours:,.0f}, transformers {slower:,.0f}, {ratio(seconds['theirs'], seconds['ours'])} times as fast; "
            f"decode steps walk {sum(rows) / len(rows) / len(prompts):.0%} of the rows")  # fmt: skip
