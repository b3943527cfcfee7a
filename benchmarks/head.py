"""Log-probability and entropy of a large vocabulary, against all logits at once and TRL's fused head.

A Qwen3 without layers is only its embedding, a norm and the head, so that nothing else is measured. Each way computes log π of
the same tokens, its gradient with respect to head and norm, and the entropy.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.measure import in_turns, line, milliseconds, peak
from harness.train.model.head import ScoringModel

NEEDS = ("trl",)
VOCABULARY, HIDDEN, TOKENS, ROUNDS = 49_152, 576, 2048, 3
"""Sizes of SmolLM2, the tokens of a micro-batch, and the number of measured rounds."""
LOGITS = 4 * TOKENS * VOCABULARY
"""Size in bytes of all logits of a micro-batch in fp32."""


def main() -> None:
    print(f"  head of {VOCABULARY:,} x {HIDDEN} on {TOKENS:,} tokens, fp32; the logits are {LOGITS >> 20} MiB")
    shape = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, num_hidden_layers=0, num_attention_heads=9, num_key_value_heads=3,
        head_dim=64, intermediate_size=8, max_position_embeddings=TOKENS + 1, tie_word_embeddings=False, pad_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    net = Qwen3ForCausalLM(shape)
    torch.nn.init.normal_(net.lm_head.weight, std=0.1)  # as sharp as a trained model's logits
    ways = _ways(net, torch.randint(0, VOCABULARY, (1, TOKENS + 1)))
    for what, backward in (("with gradient", True), ("without gradient", False)):
        runs = {name: _run(net, score, backward) for name, score in ways.items()}
        values = {name: run() for name, run in runs.items()}
        for theirs in values.values():
            torch.testing.assert_close(values["ours"], theirs, atol=1e-5, rtol=1e-5)
        memory = {name: f"peak {peak(run) / LOGITS:.2f} of the logits" for name, run in runs.items()}
        seconds = in_turns(ROUNDS, runs)
        print(f"  {what}: {milliseconds(seconds['ours'])}, {memory['ours']}")
        for name in ("all logits", "TRL"):
            print(f"  {line(what, seconds['ours'], name, seconds[name])}; {memory[name]}", flush=True)


def _run(net: Qwen3ForCausalLM, score: Callable[[], tuple[Tensor, Tensor]], backward: bool) -> Callable[[], tuple]:
    def run() -> tuple[Tensor, Tensor]:
        with torch.set_grad_enabled(backward):
            logp, entropy = score()
            if backward:
                torch.autograd.grad(logp.sum(), [net.lm_head.weight, net.model.norm.weight])
        return logp.detach(), entropy.detach()

    return run


def _ways(net: Qwen3ForCausalLM, ids: Tensor) -> dict[str, Callable[[], tuple[Tensor, Tensor]]]:
    from trl.trainer.utils import add_fused_lm_head

    scoring = ScoringModel(net, 1.0)
    fused = copy.copy(net)  # the same parameters, and a forward of its own
    add_fused_lm_head(fused, outputs=("log_probs", "entropy"))

    def plain() -> tuple[Tensor, Tensor]:
        logp = net(input_ids=ids[:, :-1], use_cache=False).logits.log_softmax(-1)
        entropy = -(logp.detach().exp() * logp.detach()).sum(-1)
        return logp.gather(-1, ids[:, 1:, None])[..., 0], entropy

    def trl() -> tuple[Tensor, Tensor]:
        out = fused(input_ids=ids, labels=ids, fused_lm_head=True)
        return out.log_probs, out.entropy

    return {"ours": lambda: scoring(input_ids=ids[:, :-1], targets=ids[:, 1:]), "all logits": plain, "TRL": trl}
