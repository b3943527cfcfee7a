"""An optimizer step of the actor at each ZeRO stage, of one rank, against the same step in plain torch."""

import copy
from collections.abc import Callable

import torch
from transformers import Qwen3ForCausalLM

from benchmarks.measure import in_turns, milliseconds, ratio
from harness.config import ActorConfig, ModelConfig
from harness.models import build, device, qwen3_config
from harness.train.model.actor import DeepSpeedActor

ROUNDS, ROWS, TOKENS, VOCABULARY = 7, 16, 48, 64
SIZES = ModelConfig(
    name="qwen3", hidden_size=256, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, head_dim=64, intermediate_size=768,
)  # fmt: skip
CONFIG = ActorConfig(
    zero_stage=0, dtype="fp32", lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, max_grad_norm=1.0, num_minibatches=1,
    epochs=1, micro_tokens=None, gradient_checkpointing=False, scoring="forward",
)  # fmt: skip


def main() -> None:
    net = build(qwen3_config(SIZES, VOCABULARY, TOKENS), 0)
    print(f"  {sum(w.numel() for w in net.parameters()):,} parameters, fp32, {ROWS} x {TOKENS} tokens")
    ids = torch.randint(0, VOCABULARY, (ROWS, TOKENS), generator=torch.Generator().manual_seed(0)).to(device())
    steps = {f"ZeRO-{stage}": _actor(copy.deepcopy(net), stage, ids) for stage in range(4)}
    seconds = in_turns(ROUNDS, {"plain": _plain(net.to(device()), ids)} | steps)
    for name in steps:
        against = f"{ratio(seconds[name], seconds['plain'])} of plain torch's {milliseconds(seconds['plain'])}"
        print(f"  {name}: {milliseconds(seconds[name])}, {against}")


def _plain(net: Qwen3ForCausalLM, ids: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(
        net.train().parameters(), lr=CONFIG.lr, betas=CONFIG.betas, eps=CONFIG.eps, weight_decay=0.0, fused=True
    )

    def step() -> None:
        logp = net(input_ids=ids[:, :-1], use_cache=False).logits.log_softmax(-1)
        (-logp.gather(-1, ids[:, 1:, None]).mean()).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), CONFIG.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _actor(net: Qwen3ForCausalLM, stage: int, ids: torch.Tensor) -> Callable[[], None]:
    actor = DeepSpeedActor(net, CONFIG.model_copy(update={"zero_stage": stage}))

    def step() -> None:
        logp, _ = actor.logp(ids[:, :1], ids[:, 1:])
        actor.backward(-logp.mean(), last=True)
        actor.step()

    return step
