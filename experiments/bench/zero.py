"""Part of `make bench`: an optimizer step of the actor at each ZeRO stage against the same step in plain torch."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable

import torch
from transformers import Qwen3ForCausalLM

from experiments.bench.measure import in_turns, milliseconds, ratio
from harness.config import ActorConfig, ModelConfig
from harness.models import build, device, qwen3_config
from harness.train.model.actor import DeepSpeedActor

ROUNDS, ROWS, TOKENS, VOCABULARY = 7, 16, 48, 64
SIZES = ModelConfig(
    name="qwen3",
    hidden_size=256,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    intermediate_size=768,
)


def main() -> None:
    """Print the ratio of each stage's step to plain torch's."""
    torch.set_num_threads(1)
    config = ActorConfig(
        zero_stage=0, dtype="fp32", lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, max_grad_norm=1.0, num_minibatches=1,
        epochs=1, micro_tokens=None, gradient_checkpointing=False, scoring="forward",
    )  # fmt: skip
    net = build(qwen3_config(SIZES, VOCABULARY, TOKENS), 0)
    ids = torch.randint(0, VOCABULARY, (ROWS, TOKENS), generator=torch.Generator().manual_seed(0)).to(device())
    arms = {"plain": _plain(copy.deepcopy(net).to(device()), config, ids)}
    for stage in range(4):
        arms[f"ZeRO-{stage}"] = _actor(copy.deepcopy(net), config.model_copy(update={"zero_stage": stage}), ids)
    seconds = in_turns(ROUNDS, arms)
    print(f"\noptimizer step, fp32, {sum(w.numel() for w in net.parameters()):,} parameters, {ROWS} x {TOKENS} tokens, one rank, "
          f"against plain torch ({milliseconds(seconds['plain'])})")  # fmt: skip
    for stage in range(4):
        name = f"ZeRO-{stage}"
        print(f"  {name}: {milliseconds(seconds[name])}, {ratio(seconds[name], seconds['plain'])} of plain torch's time")


def _plain(net: Qwen3ForCausalLM, config: ActorConfig, ids: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(
        net.train().parameters(), lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=0.0, fused=True
    )

    def step() -> None:
        logp = net(input_ids=ids[:, :-1], use_cache=False).logits.log_softmax(-1)
        (-logp.gather(-1, ids[:, 1:, None]).mean()).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), config.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _actor(net: Qwen3ForCausalLM, config: ActorConfig, ids: torch.Tensor) -> Callable[[], None]:
    actor = DeepSpeedActor(net, config)

    def step() -> None:
        logp, _ = actor.logp(ids[:, :1], ids[:, 1:])
        actor.backward(-logp.mean(), last=True)
        actor.step()

    return step


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
