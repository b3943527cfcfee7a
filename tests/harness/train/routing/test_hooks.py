"""Replay of routes in the training forward: what it changes, what it must not change, and what gradient it leaves."""

import pytest
import torch
from transformers import Qwen3MoeConfig

from harness.config import PrecisionConfig
from harness.errors import UserError
from harness.models import build
from harness.rollouts import Rollout
from harness.rollouts.local import LocalEngine
from harness.rollouts.recorded import Recorded
from harness.rollouts.routes import Routes, has_route, no_route
from harness.tasks import PAD
from harness.train.model.actor import DeepSpeedActor
from harness.train.routing.hooks import RoutingHooks, balance_loss
from harness.train.routing.replay import engine_routes
from tests.harness.train.model.test_actor import settings

SHAPE = Qwen3MoeConfig(
    vocab_size=11, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
    moe_intermediate_size=24, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True, mlp_only_layers=[],
    max_position_embeddings=32, tie_word_embeddings=False,
)  # fmt: skip


def net(seed: int = 0):
    made = build(SHAPE, seed)
    with torch.no_grad():
        for layer in made.model.layers:
            layer.mlp.gate.weight.mul_(20)  # margins that a rounding does not cross
    return made


@pytest.fixture(scope="module")
def data():
    """Prompts and answers, some shorter than others, with weights of a loss and routes that are not the model's own."""
    generator = torch.Generator().manual_seed(3)
    prompts, tokens = (torch.randint(0, 11, (6, n), generator=generator) for n in (3, 5))
    prompts[1, :2] = prompts[4, :1] = PAD
    tokens[0, 3:] = tokens[5, 1:] = PAD
    ids = torch.rand(6, 7, 2, 4, generator=generator).argsort(-1)[..., :2].to(torch.uint8)
    computed = torch.cat([prompts, tokens], 1) != PAD
    ids[~(computed[:, :-1] & computed[:, 1:])] = no_route(torch.uint8)
    return prompts, tokens, torch.randn(6, 5, generator=generator), Routes(ids)


def test_routes_are_recorded_as_the_engine_records_them(data):
    prompts, tokens, *_ = data
    actor = DeepSpeedActor(net(), settings())
    made = LocalEngine(SHAPE, PrecisionConfig(name="fp32", compute="fp32", weights=None, activations=None))
    made.load_weights(actor.weights(), 0)
    expected_logp, expected = made.score_routed(prompts, tokens)
    logp, routes = actor.route(prompts, tokens)
    here = tokens != PAD
    torch.testing.assert_close(logp[here], expected_logp[here], atol=1e-5, rtol=0)
    assert torch.equal(routes.ids, expected.ids) and routes.ids.dtype == torch.uint8
    present = has_route(routes.ids)
    assert present.sum() == 2 * ((prompts != PAD).sum() + here.sum() - 6) < present.numel()
    torch.testing.assert_close(routes.weights[present], expected.weights[present], atol=1e-5, rtol=0)
    torch.testing.assert_close(routes.margin[present], expected.margin[present], atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_replaying_the_routes_of_a_forward_changes_no_bit_of_value_or_update(data, stage, checkpointing):
    """At every ZeRO stage, with recomputed activations or without: log-probabilities, gradient norm and the step."""
    prompts, tokens, weights, _ = data
    steps = []
    for replaying in (False, True):
        actor = DeepSpeedActor(net(), settings(zero_stage=stage, gradient_checkpointing=checkpointing))
        own = actor.route(prompts, tokens)[1]
        logp, _ = actor.logp(prompts, tokens, Recorded(Routes(own.ids)) if replaying else None)
        actor.logp(prompts, tokens, None)  # another forward in between must not reach the recomputed one
        actor.backward((weights * logp).sum(), last=True)
        norm = actor.step()
        steps.append((logp.detach(), norm, [w.detach().clone() for _, w in actor.weights()]))
    (logp, norm, after), (logp_r, norm_r, after_r) = steps
    assert torch.equal(logp, logp_r) and norm == norm_r and norm > 0.5
    assert all(torch.equal(a, b) for a, b in zip(after, after_r, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 3])
def test_a_recomputed_pass_takes_the_replayed_routes(data, stage):
    """Routes that are not the model's own: the step with recomputed activations is that without, bit for bit."""
    prompts, tokens, weights, routes = data
    steps = []
    for checkpointing in (False, True):
        actor = DeepSpeedActor(net(), settings(zero_stage=stage, gradient_checkpointing=checkpointing))
        logp, _ = actor.logp(prompts, tokens, Recorded(routes))
        live, _ = actor.logp(prompts, tokens)
        assert (logp - live).abs().max() > 1e-3
        actor.backward((weights * logp).sum(), last=True)
        steps.append((actor.step(), [w.detach().clone() for _, w in actor.weights()]))
    assert steps[0][0] == steps[1][0]
    assert all(torch.equal(a, b) for a, b in zip(steps[0][1], steps[1][1], strict=True))


def test_the_router_keeps_its_gradient_under_replay_of_ids_and_loses_it_under_replay_of_weights():
    model = net()
    hooks = RoutingHooks(model)
    ids = torch.randint(0, 11, (6, 7), generator=torch.Generator().manual_seed(3))
    with hooks.record() as layers, torch.no_grad():
        model(ids)
    own = Routes.stack(layers, 6)
    other = Routes((own.ids + 1) % 4)
    for replay, kept in ((other, True), (Routes(other.ids, own.weights), False)):
        loss = model(ids, routes=replay).logits.log_softmax(-1)[..., 0].sum()
        parts = torch.autograd.grad(loss, [layer.mlp.gate.weight for layer in model.model.layers])
        largest = [part.abs().max().item() for part in parts]
        assert min(largest) > 1e-4 if kept else largest == [0.0, 0.0]


def test_the_gradient_is_that_of_the_equation_on_two_experts():
    """y = w_e·E_e(x) with e replayed, w_e = softmax(W_r x)_e, in fp64: autograd of these lines, written out, is the reference."""
    config = Qwen3MoeConfig(
        vocab_size=5, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, head_dim=4,
        moe_intermediate_size=3, num_experts=2, num_experts_per_tok=1, norm_topk_prob=False, mlp_only_layers=[],
    )  # fmt: skip
    block = build(config, 0).double().model.layers[0].mlp
    block.experts.config._experts_implementation = "eager"  # the grouped product of a GPU has no fp64
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)))
    x, out = (torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in (1, 2))
    ids = torch.tensor([0, 1, 1, 0, 1, 0])
    assert not torch.equal((x @ block.gate.weight.T).argmax(-1), ids)

    def written_out():
        p = (x @ block.gate.weight.T).exp()
        p = p / p.sum(-1, keepdim=True)
        total = 0.0
        for row, e in enumerate(ids.tolist()):
            gate, up = (block.experts.gate_up_proj[e] @ x[row]).chunk(2)
            y = block.experts.down_proj[e] @ (gate * torch.sigmoid(gate) * up)
            total = total + (out[row] * p[row, e] * y).sum()
        return total

    class Decoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            layer = torch.nn.Module()
            layer.mlp = block
            layer.forward = lambda x: block(x)
            self.layers = torch.nn.ModuleList([layer])

        def get_decoder(self):
            return self

    model = Decoder()
    RoutingHooks(model)
    y = model.layers[0](x[None], routes=Routes(ids[None, :, None, None].to(torch.uint8)))
    parameters = list(block.parameters())
    ours = torch.autograd.grad((out * y[0]).sum(), parameters)
    expected = torch.autograd.grad(written_out(), parameters)
    for (name, _), a, b in zip(block.named_parameters(), ours, expected, strict=True):
        assert b.abs().max() > 1e-3, name
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


def test_load_balancing_by_hand():
    """Two experts, top 1. Layer 1 sends 3 of 4 tokens to expert 0 with p = (.8 .8 .8 .2): f = (¾, ¼), p̄ = (.65, .35), so
    2·(¾·.65 + ¼·.35) = 1.15. Layer 2 is balanced, with f = p̄ = (½, ½): 2·(¼ + ¼) = 1."""
    p = torch.tensor([[0.8, 0.2], [0.8, 0.2], [0.8, 0.2], [0.2, 0.8]])
    even = torch.tensor([[0.6, 0.4], [0.4, 0.6]])
    assert balance_loss((p.log(),), 1).item() == pytest.approx(1.15, abs=1e-6)
    assert balance_loss((p.log(), even.log()), 1).item() == pytest.approx(2.15, abs=1e-6)
    # Of four experts in pairs, top 2: experts 0 and 1 get half of the slots each, so 4·(½·.4 + ½·.3) = 1.4.
    quad = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    assert balance_loss((quad,), 2).item() == pytest.approx(1.4, abs=1e-6)


def test_the_routes_of_a_rollout_are_those_that_the_replay_takes():
    """R3 takes the experts and never their weights; r3_weights is refused where the engine told no weights."""
    ids, weights = torch.zeros(2, 3, 1, 2, dtype=torch.uint8), torch.full((2, 3, 1, 2), 0.5)
    plain = Rollout(torch.zeros(2, 2, dtype=torch.long), torch.zeros(2, 2), torch.zeros(2, 2, dtype=torch.long))
    told = plain._replace(expert_ids=ids, expert_weights=weights)
    assert engine_routes(told, weights=False).weights is None and engine_routes(told, weights=True).weights is weights
    assert engine_routes(plain, weights=True) is None
    with pytest.raises(UserError, match="r3_weights: the rollout has experts without their weights"):
        engine_routes(told._replace(expert_weights=None), weights=True)
