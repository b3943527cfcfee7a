"""Log-probability and entropy over a large vocabulary by Faultline's head, by log_softmax of all logits, and by TRL's fused head.

The model is a Qwen3 reduced to an embedding, a norm and the head. One case also computes the gradient for norm and head.
"""

import copy
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from benchmarks.measure import Case
from harness.models import build, qwen3_config, qwen3_sizes
from harness.train.model.head import ScoringModel

NEEDS = ("trl",)
VOCABULARY, TOKENS = 49_152, 2048
"""Vocabulary size of SmolLM2, and number of tokens in a micro-batch."""


def cases() -> Iterator[Case]:
    """Generate a case with gradient and one without; each compares Faultline's head, log_softmax of all logits, and TRL's."""
    sizes = qwen3_sizes(hidden=576, layers=1, heads=9, kv_heads=3, head=64, mlp=8).model_copy(update={"num_hidden_layers": 0})
    net = build(qwen3_config(sizes, VOCABULARY, TOKENS + 1), 0)
    torch.nn.init.normal_(net.lm_head.weight, std=0.1)  # as sharp as a trained model's logits
    ways = _ways(net, torch.randint(0, VOCABULARY, (1, TOKENS + 1)))
    logits = f"{TOKENS:,} tokens, whose logits are {4 * TOKENS * VOCABULARY >> 20} MiB in fp32"
    for what, backward in (("with gradient", True), ("without gradient", False)):
        runs = {name: partial(_run, net, score, backward) for name, score in ways.items()}
        ours, *others = [run() for run in runs.values()]
        for theirs in others:
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
        yield Case(f"{logits}, {what}", runs, memory=True)


def _run(net: Qwen3ForCausalLM, score: Callable[[], tuple[Tensor, Tensor]], backward: bool) -> tuple[Tensor, Tensor]:
    with torch.set_grad_enabled(backward):
        logp, entropy = score()
        if backward:
            torch.autograd.grad(logp.sum(), [net.lm_head.weight, net.model.norm.weight])
    return logp.detach(), entropy.detach()


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
