"""The network of the gradient laboratory against plain autograd on ragged rows, by all parameters and by the upper blocks."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from faultline.tools.gradient.policy import GradientPolicy
from harness.errors import UserError
from harness.rollouts.recorded import Recorded, pack
from harness.rollouts.routes import Routes
from harness.tasks import PAD

PROMPTS = torch.tensor([[PAD, 3, 4], [5, 6, 7], [PAD, PAD, 2]])
TOKENS = torch.tensor([[1, 2, 3, PAD], [4, PAD, PAD, PAD], [5, 6, PAD, PAD]])
TEMPERATURE = 0.7


@pytest.fixture
def net():
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=9, hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1,
        head_dim=8, tie_word_embeddings=True, attn_implementation="sdpa",
    )  # fmt: skip
    return LlamaForCausalLM(shape)


@pytest.fixture
def c():
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def plain(net, c, keep=None):
    """∇ Σ c·log π by name, a row at a time and without padding. keep: [V], the tokens that are left."""
    net.zero_grad()
    for prompt, tokens, weights in zip(PROMPTS, TOKENS, c, strict=True):
        prompt, tokens = prompt[prompt != PAD], tokens[tokens != PAD]
        logits = net(torch.cat([prompt, tokens])[None, :-1]).logits[0, len(prompt) - 1 :] / TEMPERATURE
        if keep is not None:
            logits = logits.masked_fill(~keep, -torch.inf)
        logp = logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
        (weights[: len(tokens)] * logp).sum().backward()
    return {name: parameter.grad.clone() for name, parameter in net.named_parameters()}


def test_by_all_parameters(net, c):
    policy = GradientPolicy(net, TEMPERATURE)
    expected = torch.cat([part.flatten() for part in plain(net, c).values()])
    torch.testing.assert_close(policy.gradient(policy.rows(PROMPTS, TOKENS, None), c), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_by_the_upper_blocks_it_is_that_part_of_the_whole(net, c, layers):
    policy = GradientPolicy(net, TEMPERATURE, layers)
    upper = tuple(f"model.layers.{number}." for number in range(3 - layers, 3))
    found = plain(net, c)
    expected = [part.flatten() for name, part in found.items() if name.startswith(upper)] + [found["model.norm.weight"]]
    rows = policy.rows(PROMPTS, TOKENS, None)
    torch.testing.assert_close(policy.gradient(rows, c), torch.cat(expected), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(policy.gradient(rows, 2 * c), 2 * torch.cat(expected), atol=1e-6, rtol=1e-5)  # rows serve again


@pytest.mark.parametrize("layers", [None, 1])
def test_a_sampling_mask_is_replayed(net, c, layers):
    keep = torch.tensor([False, True, True, True, True, True, True, False, False])
    policy = GradientPolicy(net, TEMPERATURE, layers)
    rows = policy.rows(PROMPTS, TOKENS, Recorded(support=pack(keep.expand(3, 4, 9))))
    names = [name for name in plain(net, c) if layers is None or name.startswith(("model.layers.2.", "model.norm."))]
    found = plain(net, c, keep)
    torch.testing.assert_close(policy.gradient(rows, c), torch.cat([found[n].flatten() for n in names]), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("layers", [1, 2])
def test_routes_are_replayed_by_the_upper_blocks_too(c, layers):
    """Against the part of the whole gradient with the same routes, which none of the routers would take."""
    torch.manual_seed(0)
    shape = Qwen3MoeConfig(
        vocab_size=9, hidden_size=16, intermediate_size=24, moe_intermediate_size=8, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, num_experts=4, num_experts_per_tok=2, attn_implementation="sdpa",
    )  # fmt: skip
    net, routes = Qwen3MoeForCausalLM(shape), torch.rand(3, 6, 2, 4).argsort(-1)[..., :2].to(torch.uint8)
    replay = Recorded(Routes(routes))
    whole = GradientPolicy(net, TEMPERATURE)
    sizes, found = [parameter.numel() for parameter in whole.parameters], whole.gradient(whole.rows(PROMPTS, TOKENS, replay), c)
    upper = (*(f"model.layers.{number}." for number in range(2 - layers, 2)), "model.norm.")
    names = [name for name, _ in whole.model.named_parameters()]
    expected = [part for name, part in zip(names, found.split(sizes), strict=True) if name.startswith(upper)]
    policy = GradientPolicy(net, TEMPERATURE, layers)
    actual = policy.gradient(policy.rows(PROMPTS, TOKENS, replay), c)
    torch.testing.assert_close(actual, torch.cat(expected), atol=1e-6, rtol=1e-5)


def test_more_layers_than_there_are(net):
    with pytest.raises(UserError, match="--layers 4: the model has 3; give at most as many"):
        GradientPolicy(net, TEMPERATURE, 4)
