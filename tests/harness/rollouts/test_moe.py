"""A mixture of experts in the embedded engine: against transformers, its own invariants, and routes recorded and replayed."""

import pytest
import torch
from transformers import Qwen3MoeConfig

from harness.errors import UserError
from harness.models import build
from harness.rollouts.architecture import architecture_of
from harness.rollouts.local import LocalEngine
from harness.rollouts.recorded import Recorded
from harness.rollouts.routes import Routes, has_route, id_dtype, no_route
from harness.tasks import PAD
from tests.harness.engines import FP32, loaded

NAMES = ("fp32", "bf16", "fp8_tensor", "int8", "nvfp4", "nvfp4_w4a4")
SIZES = dict(
    vocab_size=31, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    moe_intermediate_size=32, num_experts=6, num_experts_per_tok=2, norm_topk_prob=True, mlp_only_layers=[],
    max_position_embeddings=64, tie_word_embeddings=False,
)  # fmt: skip


def shape(**changes) -> Qwen3MoeConfig:
    return Qwen3MoeConfig(**(SIZES | changes))


def sharp(config: Qwen3MoeConfig):
    """Gains off 1 and sharp logits, so that no term can be missing unnoticed."""
    net = build(config, seed=1).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in net.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.3 * noise if parameter.ndim == 1 else parameter * 4)
    return net


@pytest.fixture(scope="module")
def net():
    return sharp(shape())


@pytest.fixture(scope="module")
def asked():
    """Prompts of 2 to 7 tokens, three samples each, and uniform numbers."""
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, 31, (6, 7), generator=generator)
    for row, length in enumerate((7, 2, 5, 7, 3, 6)):
        prompts[row, : 7 - length] = PAD
    return prompts.repeat_interleave(3, 0), torch.rand(18, 12, generator=generator)


def engine(net, name: str = "fp32", version: int = 0, **more) -> LocalEngine:
    return loaded(net, name, version, **more)


def by_transformers(net, prompts, tokens):
    """log-probabilities of the tokens and the router's choice at each place, row by row without padding."""
    logp, chosen = torch.zeros(tokens.shape), []
    hooks = [
        layer.mlp.gate.register_forward_hook(lambda module, args, out: chosen[-1].append(out[2])) for layer in net.model.layers
    ]
    for row, (prompt, answer) in enumerate(zip(prompts, tokens, strict=True)):
        prompt, answer = prompt[prompt != PAD], answer[answer != PAD]
        chosen.append([])
        with torch.no_grad():
            logits = net(torch.cat([prompt, answer])[None, :-1]).logits[0, len(prompt) - 1 :]
        logp[row, : len(answer)] = logits.log_softmax(-1).gather(-1, answer[:, None])[:, 0]
    for hook in hooks:
        hook.remove()
    return logp, [torch.stack(layers, 1) for layers in chosen]


@pytest.mark.parametrize("changes", [{}, {"num_experts_per_tok": 1, "norm_topk_prob": False}, {"num_experts_per_tok": 5}])
def test_fp32_agrees_with_transformers_in_value_and_in_choice(asked, changes):
    net = sharp(shape(**changes))
    out = engine(net, stop=(0,)).generate(*asked)
    logp, chosen = by_transformers(net, asked[0], out.tokens)
    assert (out.tokens == PAD).any()
    assert (out.logp - logp).abs().max() < 1e-5
    ids, width = out.expert_ids, asked[0].shape[1]
    assert ids.shape == (18, 7 + 12 - 1, 3, net.config.num_experts_per_tok) and ids.dtype == torch.uint8
    for row, expected in enumerate(chosen):
        padding, length = int((asked[0][row] == PAD).sum()), int((out.tokens[row] != PAD).sum())
        here = slice(padding, width + length - 1)
        assert torch.equal(ids[row, here].long().sort(-1).values, expected.sort(-1).values)
        elsewhere = torch.ones(18, dtype=torch.bool)
        elsewhere[here] = False
        assert (ids[row, elsewhere] == 255).all() and torch.equal(has_route(ids[row])[:, 0], ~elsewhere)
    share = out.expert_weights.sum(-1)[has_route(ids)]
    if net.config.norm_topk_prob:
        torch.testing.assert_close(share, torch.ones_like(share))
    else:
        assert (share < 1).all()


@pytest.mark.parametrize("name", NAMES)
def test_scoring_along_the_sampling_path_gives_the_same_bits_and_routes(net, asked, name):
    made = engine(net, name, stop=(0,))
    out = made.generate(*asked)
    logp, routes = made.score_routed(asked[0], out.tokens)
    assert torch.equal(logp, out.logp)
    assert torch.equal(routes.ids, out.expert_ids) and torch.equal(routes.weights, out.expert_weights)


@pytest.mark.parametrize("name", NAMES)
def test_replaying_its_own_routes_changes_no_bit(net, asked, name):
    made = engine(net, name, stop=(0,))
    out = made.generate(*asked)
    for replay in (Recorded(Routes(out.expert_ids)), Recorded(Routes(out.expert_ids, out.expert_weights))):
        logp, routes = made.score_routed(asked[0], out.tokens, replay)
        assert torch.equal(logp, out.logp) and torch.equal(routes.ids, out.expert_ids)


def test_under_noise_on_the_selection_replay_gives_the_same_bits(net, asked):
    """The noise picks other experts and touches nothing else, so the clean policy on these experts computes the same numbers."""
    noisy, clean = engine(net, router_noise=0.5), engine(net)
    out = noisy.generate(*asked)
    live, routes = clean.score_routed(asked[0], out.tokens)
    flipped = (routes.ids.sort(-1).values != out.expert_ids.sort(-1).values).any(-1)
    assert flipped.float().mean() > 0.1 and not torch.equal(live, out.logp)
    assert torch.equal(clean.score(asked[0], out.tokens, Recorded(Routes(out.expert_ids))), out.logp)


def test_rows_that_agree_in_tokens_but_not_in_routes_are_computed_apart(net):
    """Another engine may route equal prefixes differently: each row is what it would be by itself."""
    prompts, tokens = torch.tensor([[3, 4, 5]] * 4), torch.tensor([[6, 7, 8, 9]] * 4)
    made = engine(net)
    ids = made.score_routed(prompts, tokens)[1].ids
    ids[1, 4, 1] = (ids[1, 4, 1] + 1) % 6  # row 1 parts from row 0 after a response token, row 2 within the prompt
    ids[2, 1, 0] = (ids[2, 1, 0] + 1) % 6
    together = made.score(prompts, tokens, Recorded(Routes(ids)))
    for row in range(4):
        alone = made.score(prompts[row : row + 1], tokens[row : row + 1], Recorded(Routes(ids[row : row + 1])))
        torch.testing.assert_close(alone[0], together[row], atol=1e-5, rtol=0)
    assert torch.equal(together[0], together[3])
    assert torch.equal(together[0, :2], together[1, :2]) and (together[0, 2:] != together[1, 2:]).all()
    assert (together[0] != together[2]).any()


def test_where_no_route_is_given_the_live_choice_stands(net, asked):
    made = engine(net, stop=(0,))
    out = made.generate(*asked)
    nothing = torch.full_like(out.expert_ids, no_route(out.expert_ids.dtype))
    assert torch.equal(made.score(asked[0], out.tokens, Recorded(Routes(nothing))), out.logp)


def test_replayed_weights_count(net, asked):
    """Weights of 0 leave the residual stream alone, so the experts of all layers might as well not be there."""
    out = engine(net).generate(*asked)
    silent = engine(net).score(asked[0], out.tokens, Recorded(Routes(out.expert_ids, torch.zeros_like(out.expert_weights))))
    muted = {name: torch.zeros_like(w) if "down_proj" in name else w for name, w in net.named_parameters()}
    without = LocalEngine(net.config, FP32)
    without.load_weights(muted.items(), 0)
    assert torch.equal(silent, without.score(asked[0], out.tokens))


def test_experts_are_quantised_one_by_one(net):
    """Each FP8 expert uses its own scale max|w|/448, in fp64 by hand."""
    made = engine(net, "fp8_tensor")
    stacked = net.model.layers[1].mlp.experts.gate_up_proj.detach().bfloat16().double()
    for expert, (first, _) in enumerate(made.layers[1]["mixture"].experts):
        assert first.scale.item() == pytest.approx(stacked[expert].abs().max().item() / 448, rel=1e-6)
        off = (first.codes.double().t() * first.scale.double() - stacked[expert]).abs().max()
        assert off < 0.07 * stacked[expert].abs().max()  # half of e4m3's spacing at its top, 16/448, and rounding


def test_one_block_by_hand(net):
    """y = Σ w_e·W_down(silu(W_gate x) ⊙ W_up x) in fp64, for experts picked by sorting softmax(W_r x)."""
    x = torch.randn(9, 48, generator=torch.Generator().manual_seed(1))
    y, routes = engine(net).layers[2]["mixture"](x, None)
    block = net.double().model.layers[2].mlp
    for row, given in enumerate(x.double()):
        p = (block.gate.weight @ given).softmax(-1).detach()
        best = p.argsort(descending=True)[:3]
        expected = torch.zeros(48, dtype=torch.float64)
        for e in best[:2]:
            gate, up = (block.experts.gate_up_proj[e] @ given).chunk(2)
            expected += p[e] / p[best[:2]].sum() * (block.experts.down_proj[e] @ (torch.nn.functional.silu(gate) * up)).detach()
        assert routes.ids[row].tolist() == best[:2].tolist()
        assert routes.margin[row].item() == pytest.approx((p[best[1]] - p[best[2]]).item(), abs=1e-6)
        torch.testing.assert_close(y[row].double(), expected, atol=1e-5, rtol=1e-5)
    net.float()


def test_nvfp4_activations_do_not_depend_on_the_other_tokens(net, asked):
    made = engine(net, "nvfp4_w4a4")
    out = made.generate(*asked)
    part = made.generate(asked[0][6:9], asked[1][6:9])
    assert torch.equal(part.tokens, out.tokens[6:9])
    torch.testing.assert_close(part.logp, out.logp[6:9], atol=0.05, rtol=0)


def test_the_router_and_the_head_may_stay_in_fp32(net):
    plain, exact = engine(net, "bf16"), engine(net, "bf16", router_dtype="fp32", head_dtype="fp32")
    gate = net.model.layers[0].mlp.gate.weight.detach()
    assert torch.equal(exact.layers[0]["mixture"].router.gate, gate.t())
    assert torch.equal(plain.layers[0]["mixture"].router.gate, gate.t().bfloat16().float())
    assert torch.equal(exact.head, net.lm_head.weight.detach().t())
    x = torch.randn(5, 48, generator=torch.Generator().manual_seed(1)).bfloat16().float()
    logits = x.double() @ gate.double().t()
    expected = logits.softmax(-1).topk(2).values
    expected = (expected / expected.sum(-1, keepdim=True)).float()
    off = [(e.layers[0]["mixture"].route(x, None).weights - expected).abs().max().item() for e in (exact, plain)]
    assert off[0] < 1e-6 < 1e-4 < off[1]


def test_id_types_hold_every_expert_and_the_mark_of_no_route():
    assert (id_dtype(8), id_dtype(254), id_dtype(255), id_dtype(512)) == (torch.uint8, torch.uint8, torch.int16, torch.int16)
    assert (no_route(torch.uint8), no_route(torch.int16)) == (255, 32767)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mlp_only_layers": [0]}, "experts in every layer"),
        ({"decoder_sparse_step": 2}, "experts in every layer"),
        ({"num_experts_per_tok": 6}, "fewer experts than there are"),
        ({"use_sliding_window": True}, "sliding_window=4096"),
    ],
)
def test_what_it_does_not_compute_is_refused_by_name(changes, reason):
    with pytest.raises(UserError, match=reason):
        architecture_of(shape(**changes))


def test_nan_weights_give_nan_log_probabilities_not_an_exception(net, asked):
    broken = {name: w.detach().clone() for name, w in net.named_parameters()}
    broken["model.layers.0.mlp.gate.weight"][:] = float("nan")
    made = LocalEngine(net.config, FP32)
    made.load_weights(broken.items(), 0)
    assert not made.generate(*asked).logp.isfinite().any()


def test_weights_that_were_half_taken_cannot_be_sampled_from(net, asked):
    """The last layer's experts are missing: the layers before it are new, the rest would be old."""
    sampler = engine(net)
    broken = [(name, w + 1) for name, w in net.named_parameters() if name != "model.layers.2.mlp.experts.down_proj"]
    with pytest.raises(KeyError):
        sampler.load_weights(broken, 1)
    with pytest.raises(RuntimeError, match="holds no whole weights; load_weights comes first"):
        sampler.generate(*asked)
    sampler.load_weights(net.named_parameters(), 2)
    assert torch.equal(sampler.generate(*asked).tokens, engine(net).generate(*asked).tokens)
