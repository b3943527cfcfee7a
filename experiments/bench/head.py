"""Part of `make bench`: log-probability and entropy of a large vocabulary, against all logits at once and TRL's fused head.

A Qwen3 without layers is its embedding, a norm and the head, so that nothing else is measured. All ways give log π of the same
tokens, its gradient to head and norm, and the entropy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from experiments.bench.measure import in_turns, milliseconds, peak, ratio
from harness.train.model.head import ScoringModel

VOCABULARY, HIDDEN, TOKENS, ROUNDS = 49_152, 576, 2048, 3
"""SmolLM2's sizes, and the places of a micro-batch."""

Values = tuple[Tensor, Tensor]


def main() -> None:
    """Print time and peak memory of scoring with the gradient and without."""
    torch.set_num_threads(1)
    shape = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, num_hidden_layers=0, num_attention_heads=9, num_key_value_heads=3,
        head_dim=64, intermediate_size=8, max_position_embeddings=TOKENS + 1, tie_word_embeddings=False, pad_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    net = Qwen3ForCausalLM(shape)
    torch.nn.init.normal_(net.lm_head.weight, std=0.1)  # of a trained model's sharpness
    ids = torch.randint(0, VOCABULARY, (1, TOKENS + 1))
    ways = {"ours": _ours(net, ids), "all logits": _plain(net, ids)}
    if find_spec("trl") is None:
        print("\nTRL is not installed: `make bench` puts it on the path of this part")
    else:
        ways["TRL"] = _trl(net, ids)
    logits = 4 * TOKENS * VOCABULARY
    print(f"\nhead of {VOCABULARY:,} x {HIDDEN} on {TOKENS:,} tokens, fp32; the logits are {logits >> 20} MiB")
    for what, backward in (("with gradient", True), ("without gradient", False)):
        runs = {name: _run(net, score, backward) for name, score in ways.items()}
        values = {name: run() for name, run in runs.items()}
        for theirs in values.values():
            torch.testing.assert_close(values["ours"], theirs, atol=1e-5, rtol=1e-5)
        memory = {name: peak(run) for name, run in runs.items()}
        seconds = in_turns(ROUNDS, runs)
        print(f"  {what}: {milliseconds(seconds['ours'])}, peak {memory['ours'] / logits:.2f} of the logits")
        for name in list(ways)[1:]:
            print(f"    against {name}: {milliseconds(seconds[name])}, {ratio(seconds[name], seconds['ours'])} times as fast; "
                  f"peak {memory[name] / logits:.2f} of the logits", flush=True)  # fmt: skip


def _run(net: Qwen3ForCausalLM, score: Callable[[], Values], backward: bool) -> Callable[[], Values]:
    def run() -> Values:
        with torch.set_grad_enabled(backward):
            logp, entropy = score()
            if backward:
                torch.autograd.grad(logp.sum(), [net.lm_head.weight, net.model.norm.weight])
        return logp.detach(), entropy.detach()

    return run


def _ours(net: Qwen3ForCausalLM, ids: Tensor) -> Callable[[], Values]:
    scoring = ScoringModel(net, 1.0)  # type: ignore[arg-type]  # transformers hides the class
    return lambda: scoring(input_ids=ids[:, :-1], targets=ids[:, 1:])


def _plain(net: Qwen3ForCausalLM, ids: Tensor) -> Callable[[], Values]:
    def score() -> Values:
        logp = net(input_ids=ids[:, :-1], use_cache=False).logits.log_softmax(-1)
        entropy = -(logp.detach().exp() * logp.detach()).sum(-1)
        return logp.gather(-1, ids[:, 1:, None])[..., 0], entropy

    return score


def _trl(net: Qwen3ForCausalLM, ids: Tensor) -> Callable[[], Values]:
    from trl.trainer.utils import add_fused_lm_head

    fused = copy.copy(net)  # the same parameters, and a forward of its own
    add_fused_lm_head(fused, outputs=("log_probs", "entropy"))

    def score() -> Values:
        out = fused(input_ids=ids, labels=ids, fused_lm_head=True)
        return out.log_probs, out.entropy

    return score


if __name__ == "__main__":
    main()
