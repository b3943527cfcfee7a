"""Sequences that share the forward pass of their beginnings: log-probabilities, values and gradients are those of rows alone."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config

from harness.models import build, qwen3_config
from harness.tasks import PAD
from harness.train.model.actor import DeepSpeedActor
from harness.train.model.head import ValueModel
from harness.train.model.layout import Layout, can_share
from tests.harness.train.model.test_actor import SIZES, settings
from tests.harness.train.model.test_equal_rows import error
from tests.harness.train.routing import test_hooks as test_routing

ASKED = torch.tensor([0, 0, 1, 0, 1, 2, 2, 2, 2])
"""The prompts of nine responses: three, two and four each."""


def llama():
    torch.manual_seed(5)
    sizes = {"vocab_size": 11, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape = LlamaConfig(**sizes, num_key_value_heads=2, max_position_embeddings=128)
    return LlamaForCausalLM._from_config(shape, attn_implementation="sdpa")


def qwen3():
    return build(qwen3_config(SIZES, 11, 128), 0)


def sampled(length: int = 7):
    """Three prompts of 40, 36 and 39 tokens, nine responses of at most `length`, and the weights of a loss."""
    generator = torch.Generator().manual_seed(7)
    prompts, tokens = torch.randint(0, 11, (3, 40), generator=generator), torch.randint(0, 11, (9, length), generator=generator)
    prompts[1, :4] = prompts[2, :1] = PAD
    if length == 1:
        tokens = torch.arange(9)[:, None]  # no two rows are equal
    else:
        tokens[1, 4:] = tokens[7, 1:] = PAD
    return prompts[ASKED], tokens, torch.randn(9, length, generator=generator)


def passed(make, length: int, **changes):
    """(log-probabilities, entropy, gradients, shape of the ids of the forward) of one backward pass."""
    prompts, tokens, weights = sampled(length)
    actor, shapes = DeepSpeedActor(make(), settings(zero_stage=0, **changes)), []
    actor.engine.module.register_forward_pre_hook(lambda *call: shapes.append((*call[2]["input_ids"].shape,)), with_kwargs=True)
    logp, entropy = actor.logp(prompts, tokens)
    actor.backward((weights * logp).sum() + entropy.sum(), last=True)
    return logp.detach(), entropy.detach(), [p.grad.clone() for p in actor.engine.module.parameters()], shapes[0]


def beginnings(prompts, tokens) -> set[tuple[int, ...]]:
    """Every beginning of the sequences without their last tokens. No token predicts after a response."""
    rows = torch.cat([prompts, tokens], 1).tolist()
    sequences = [[token for token in row if token != PAD][:-1] for row in rows]
    return {tuple(sequence[: end + 1]) for sequence in sequences for end in range(len(sequence))}


def alone(monkeypatch):
    """Compute each row alone."""
    monkeypatch.setattr("harness.train.model.actor.can_share", lambda _: False)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("make", [llama, qwen3])
@pytest.mark.parametrize("length", [1, 7])
def test_log_probabilities_and_gradients_are_those_of_rows_alone(make, length, checkpointing, monkeypatch):
    """One tree in the place of nine rows, to the rounding of fp32. It has one place for each different beginning."""
    logp, entropy, gradients, shape = passed(make, length, gradient_checkpointing=checkpointing)
    alone(monkeypatch)
    expected_logp, expected_entropy, expected, all_rows = passed(make, length, gradient_checkpointing=checkpointing)
    assert (shape, all_rows) == ((1, len(beginnings(*sampled(length)[:2]))), (9, 40 + length - 1))
    torch.testing.assert_close(logp, expected_logp, atol=2e-6, rtol=0)
    torch.testing.assert_close(entropy, expected_entropy, atol=2e-6, rtol=0)
    assert error(gradients, expected) < 2e-6


def test_values_are_those_of_rows_alone():
    prompts, tokens, _ = sampled()
    model = ValueModel(qwen3())
    torch.nn.init.normal_(model.value_head.weight)
    shared, rows = Layout.shared(prompts, tokens), Layout.of(prompts, tokens)
    ours, theirs = (
        layout.whole(model(input_ids=layout.input_ids, targets=layout.targets, **layout.places)[0]) for layout in (shared, rows)
    )
    torch.testing.assert_close(ours, theirs, atol=5e-6, rtol=0)
    assert theirs.abs().max() > 0.1 and (theirs[1, 4:] == 0).all()


def by_hand(monkeypatch, longest: int) -> Layout:
    """The layout of prompts (3, 4) and (·, 5), responses (6, 7), (8, 9), (6, 9) to the first and (2, ·) to the second."""
    for name, value in {"SHARED": 2, "WORTH": 1, "LONGEST": longest}.items():
        monkeypatch.setattr(f"harness.train.model.layout.{name}", value)
    prompts = torch.tensor([[3, 4], [3, 4], [PAD, 5], [3, 4]])
    layout = Layout.shared(prompts, torch.tensor([[6, 7], [8, 9], [2, PAD], [6, 9]]))
    assert layout is not None
    return layout


def test_a_tree_by_hand(monkeypatch):
    """In lexical order the sequences without their last tokens are (3, 4, 6) twice, (3, 4, 8) and (5): one tree of 5 places.

    Targets in order: 6 and 8 after the 4 at place 1; 7 and 9 after the 6 at place 2; 9 after the 8; 2 after the 5.
    """
    layout = by_hand(monkeypatch, 5)
    assert layout.input_ids.tolist() == [[3, 4, 6, 8, 5]]
    assert layout.places["position_ids"].tolist() == [[0, 1, 2, 2, 0]]
    assert layout.places["at"].tolist() == [[1, 1, 2, 2, 3, 4]] and layout.targets.tolist() == [[6, 8, 7, 9, 9, 2]]
    assert layout.mask.tolist() == [[True, True], [True, True], [True, False], [True, True]]
    assert layout.whole(torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]])).tolist() == [[1, 3], [2, 5], [6, 0], [1, 4]]
    seen = layout.places["attention_mask"][0, 0].int().tolist()
    assert seen == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 0, 1, 0], [0, 0, 0, 0, 1]]


def test_two_trees_by_hand(monkeypatch):
    """With at most 4 places a tree, the sequences (3, 4, 6) are the first tree; (3, 4, 8) and (5) are the second."""
    layout = by_hand(monkeypatch, 4)
    assert layout.input_ids.tolist() == [[3, 4, 6, 0], [3, 4, 8, 5]]
    assert layout.places["position_ids"].tolist() == [[0, 1, 2, 0], [0, 1, 2, 0]]
    assert layout.places["at"].tolist() == [[1, 2, 2, 5, 6, 7]] and layout.targets.tolist() == [[6, 7, 9, 8, 9, 2]]
    assert layout.whole(torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]])).tolist() == [[1, 2], [4, 5], [6, 0], [1, 3]]
    seen = layout.places["attention_mask"][:, 0].int().tolist()
    assert seen[0] == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]]
    assert seen[1] == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]]


def test_what_does_not_pay_is_not_shared():
    prompts, tokens, _ = sampled()
    assert Layout.shared(prompts, tokens) is not None
    assert Layout.shared(prompts[:, 9:], tokens) is None  # 31 tokens
    assert Layout.shared(prompts[[0, 2, 5]], tokens[:3]) is None  # three prompts
    assert Layout.shared(prompts[:1], torch.ones(1, 1000, dtype=torch.int64)) is None  # 40 + 999 tokens in a row
    pair, size = [0, 1], torch.arange(42)  # 40 + 2 · 20 = 80 of 2 · 60 tokens are 0.67 of them, 40 + 2 · 41 of 2 · 81 over 0.75
    for length, shares in ((21, True), (41, True), (42, False)):
        assert (Layout.shared(prompts[pair], torch.stack([size % 2, 1 - size % 2])[:, :length]) is not None) == shares


def test_which_models_share():
    assert can_share(LlamaConfig()) and can_share(qwen3().config) and can_share(Qwen2Config())
    assert not can_share(Qwen2Config(use_sliding_window=True)) and not can_share(test_routing.net().config)
