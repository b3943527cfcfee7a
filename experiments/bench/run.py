"""Sampling against transformers' own generate, and one RL step by phase."""

from __future__ import annotations

from functools import partial
from statistics import median

import torch
from torch.profiler import profile
from transformers import GenerationConfig

from algos.corrections.apply import correct
from experiments.bench.measure import in_turns, ratio
from harness.build import build_task
from harness.compose import compose
from harness.config import Config, PrecisionConfig, parse
from harness.models import DTYPES, build, policy_config
from harness.rollouts.local import LocalEngine
from harness.run.folder import RunFolder
from harness.seeding import generator
from harness.train.trainer import Trainer
from harness.train.warmstart import warm_start
from harness.validate import check

ROUNDS = 7
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "scaled_dot_product")
"""Parts of operator names that are matrix products, attention's included."""


def main(root: str) -> None:
    """Sampling, and the phases of a step, of the default run with FP8 rollouts."""
    config = _default(f"run.root={root}")
    sampling(config)
    phases(config)


def sampling(config: Config) -> None:
    """Tokens per second of CPU time of the local engine and of transformers' own generate, of the same weights and prompts.

    Once on the run's batch, where the samples of a prompt share what they have in common, and once on single samples of
    different prompts, where nothing is shared.
    """
    task = build_task(config)
    start = warm_start(config, task)
    shape = policy_config(config.model, task)
    length = shape.max_position_embeddings - start.train.shape[1]
    print(f"\nsampling responses of {length} tokens, {sum(w.numel() for w in start.state.values()):,} parameters")
    batch = start.train[: config.rollout.prompts].repeat_interleave(config.rollout.group_size, dim=0)
    single = torch.cat([start.train, start.held_out])
    for name in ("fp32", "bf16"):
        engine = LocalEngine(shape, PrecisionConfig(name=name, compute=name, weights=None, activations=None))
        engine.load_weights(start.state.items(), 0)
        net = build(shape, 0).eval()
        net.load_state_dict(start.state)
        net = net.to(DTYPES[name])
        # Sampling from the whole distribution, to the full length: what the engine does.
        settings = GenerationConfig(do_sample=True, top_k=0, min_new_tokens=length, max_new_tokens=length, pad_token_id=0)
        batches = ((f"{config.rollout.prompts} prompts x {config.rollout.group_size}", batch), ("1 of each prompt", single))
        for what, prompts in batches:
            uniforms = torch.rand(len(prompts), length, generator=generator(0, "bench"))
            ours = partial(engine.generate, prompts, uniforms)
            theirs = partial(net.generate, prompts, attention_mask=torch.ones_like(prompts), generation_config=settings)
            seconds = in_turns(ROUNDS, {"ours": ours, "theirs": theirs})
            a, b = (median(seconds[name]) for name in ("ours", "theirs"))
            tokens, answers = uniforms.numel(), engine.generate(prompts, uniforms).tokens
            rows = [len(torch.cat([prompts, answers[:, :t]], 1).unique(dim=0)) for t in range(1, length)]
            walked = sum(rows) / len(rows) / len(prompts)
            times = ratio(seconds["theirs"], seconds["ours"])
            print(f"  {name}, {what}: local {tokens / a:,.0f} tokens/s, transformers generate {tokens / b:,.0f} tokens/s, ratio "
                  f"{times}; decode steps walk {walked:.0%} of the rows")  # fmt: skip


def phases(config: Config) -> None:
    """One RL step of it by phase, what its correction costs, and the share that is neither matrix product nor optimizer."""
    folder = RunFolder(config.path)
    with folder.claim():
        trainer, batches = Trainer(check(config), folder), []
        update = trainer.learner.update
        trainer.learner.update = lambda given, *rest, **more: (batches.append(given.batch), update(given, *rest, **more))[1]
        rows = [trainer.step(step) for step in range(1, 12)][1:]  # without the first, which allocates, nor an evaluation
        rows = [row for row in rows if "time/evaluate" not in row]
        whole = median(row["time/step"] for row in rows)
        print(f"\none RL step, {config.rollout.precision.name} rollout: {whole * 1e3:.0f} ms")
        spent = {phase: median(row[f"time/{phase}"] for row in rows) for phase in ("sync", "generate", "score", "train")}
        for phase, seconds in spent.items():
            print(f"  {phase}: {seconds * 1e3:.0f} ms, {seconds / whole:.0%}")
        cost = median(in_turns(ROUNDS, {"correct": partial(correct, batches[-1], config.correction)})["correct"])
        share = cost / spent["train"]
        print(f"  of train (forward, loss, backward, optimizer) the token truncation: {cost * 1e3:.2f} ms, {share:.1%}")
        with profile() as profiled:
            total = 1e6 * sum(trainer.step(step)["time/step"] for step in range(12, 15))
    events = profiled.key_averages()
    products = sum(e.self_cpu_time_total for e in events if any(part in e.key for part in PRODUCTS))
    optimizer = sum(e.self_cpu_time_total for e in events if "adam" in e.key.lower())
    print(
        f"  of the step, profiled: matrix products {products / total:.0%}, optimizer {optimizer / total:.0%}, "
        f"the rest {1 - (products + optimizer) / total:.0%}"
    )


def _default(*overrides: str) -> Config:
    return parse(compose("rollout/precision=fp8_tensor", "correction=token_truncate", "tracking=disabled", *overrides))
