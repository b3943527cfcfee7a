"""The training forward in a rollout's precision: values are the engine's, gradients those of the written-out equation."""

import pytest
import torch
from torch import nn

from harness.config import MixtureConfig, ModelConfig, PrecisionConfig
from harness.errors import UserError
from harness.models import build, qwen3_config
from harness.rollouts.linear import Arithmetic, EngineMatrix
from harness.rollouts.local import LocalEngine
from harness.rollouts.recorded import Recorded
from harness.run.folder import run_folders
from harness.run.loop import train
from harness.train.model.actor import DeepSpeedActor
from harness.train.model.straight_through import _CastExperts, _Fused
from tests.harness.conftest import TINY
from tests.harness.train.model.test_actor import settings
from tests.harness.train.test_ranks import run, torchrun
from tests.harness.train.test_trainer import folder_of, stepped

SIZES = ModelConfig(
    name="qwen3", hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, intermediate_size=160,
)  # fmt: skip
SHAPE = qwen3_config(SIZES, 13, 20)
FORMATS = {
    "fp8_tensor": ("fp8_tensor", "fp8_token"),
    "fp8_channel": ("fp8_channel", "fp8_token"),
    "fp8_block": ("fp8_block", "fp8_group"),
    "fp8_block_w8a16": ("fp8_block", None),
    "mxfp8": ("mxfp8", "mxfp8"),
    "int8": ("int8_channel", "int8_token"),
    "nvfp4": ("nvfp4", None),
    "nvfp4_w4a4": ("nvfp4", "nvfp4_token"),
    "mxfp4": ("mxfp4", "mxfp4"),
}


def precision(name: str, compute: str = "fp32") -> PrecisionConfig:
    weights, activations = FORMATS[name]
    return PrecisionConfig(name=name, compute=compute, weights=weights, activations=activations)


def sharp(seed: int = 1):
    net = build(SHAPE, seed)
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3)
    return net


def wide(parts):
    return [None if part is None else part.double() for part in parts]


def rows(n: int = 8):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 13, (n, 5), generator=generator), torch.randint(0, 13, (n, 10), generator=generator)


@pytest.mark.parametrize("name", FORMATS)
def test_the_gradient_is_that_of_the_written_out_equation_in_fp64(name):
    """y = q(x)·q(W)ᵀ + b with q(v) = v + (Q(v) − v) and the bracket a constant, by autograd; W is two matrices cast as one."""
    generator = torch.Generator().manual_seed(0)
    made = Arithmetic(precision(name))
    layers = [nn.Linear(160, n).double() for n in (40, 24)]
    for layer in layers:
        layer.weight.data.copy_(torch.randn(layer.weight.shape, generator=generator))  # fp32 numbers, as of a trainer
        layer.bias.data.copy_(torch.randn(len(layer.bias), generator=generator))
    x = torch.randn(2, 3, 160, generator=generator).double()
    weight = torch.cat([layer.weight.detach() for layer in layers]).float()
    quantised = EngineMatrix(*wide(made.weight(weight)[:3])).values().t()
    codes = Arithmetic.values(*wide(made.activation(x.flatten(0, 1).float()))).view_as(x)

    fused, leaf = _Fused(made, layers), x.clone().requires_grad_()
    ours = torch.cat([fused.forward(number, leaf) for number in (0, 1)], -1)
    gradients = torch.autograd.grad(ours.tanh().sum(), [leaf, *(p for layer in layers for p in layer.parameters())])

    plain = x.clone().requires_grad_()
    w, b = weight.double().requires_grad_(), torch.cat([layer.bias.detach() for layer in layers]).requires_grad_()
    written = (plain + (codes - plain).detach()) @ (w + (quantised - w).detach()).t() + b
    of_x, of_w, of_b = torch.autograd.grad(written.tanh().sum(), [plain, w, b])
    torch.testing.assert_close(ours, written, rtol=1e-12, atol=1e-12)
    expected = [of_x, of_w[:40], of_b[:40], of_w[40:], of_b[40:]]
    for actual, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-12, atol=1e-12)
    assert (written - x @ w.t() - b).abs().max() > 1e-2  # the cast is no small matter


@pytest.mark.parametrize("name", FORMATS)
def test_the_forward_has_the_values_of_the_engine(name):
    """Up to the order of sums, which can tip a code: far closer than the engine is to a trainer that does not cast."""
    prompts, tokens = rows()
    actor = DeepSpeedActor(sharp(), settings(precision=precision(name)))
    engine = LocalEngine(SHAPE, precision(name))
    engine.load_weights(actor.weights(), 0)
    plain = DeepSpeedActor(sharp(), settings())
    with torch.no_grad():
        ours, uncast = actor.logp(prompts, tokens)[0], plain.logp(prompts, tokens)[0]
    theirs = engine.score(prompts, tokens)
    assert (ours - theirs).abs().mean() < 0.1 * (uncast - theirs).abs().mean()


@pytest.mark.parametrize("changes", [{"zero_stage": 2}, {"gradient_checkpointing": True}])
def test_zero_stages_and_checkpointing_change_no_gradient(changes):
    prompts, tokens = rows()
    norms, values = [], []
    for more in ({}, changes):
        actor = DeepSpeedActor(sharp(), settings(**{"precision": precision("fp8_tensor"), **more}))
        logp = actor.logp(prompts, tokens)[0]
        actor.backward(-logp.sum(), last=True)
        norms.append(actor.step())
        values.append(torch.cat([w.detach().flatten() for _, w in actor.weights()]))
    assert norms[0] == pytest.approx(norms[1], rel=1e-6) and norms[0] > 0
    torch.testing.assert_close(values[0], values[1], rtol=0, atol=1e-7)


def test_a_checkpoint_goes_on_to_the_bit(tmp_path):
    prompts, tokens = rows()

    def steps(actor, n):
        for _ in range(n):
            actor.backward(-actor.logp(prompts, tokens)[0].sum(), last=True)
            actor.step()
        return torch.cat([w.detach().flatten() for _, w in actor.weights()])

    cast = settings(precision=precision("fp8_block"))
    first = DeepSpeedActor(sharp(), cast)
    steps(first, 1)
    first.save(tmp_path)
    second = DeepSpeedActor(sharp(7), cast)
    second.load(tmp_path, 1)
    assert torch.equal(steps(second, 1), steps(first, 1))


TRAINERS = {"bf16": [], "fp8_block": ["rollout/precision@actor.precision=fp8_block"]}


@pytest.mark.slow
@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("rollout", TRAINERS)
def test_the_mismatch_is_exactly_0_where_rollout_and_trainer_agree(tiny, rollout, trainer):
    """π_old is scored along the sampling path by the same casts of the same weights: the same bits. Elsewhere K3 is positive."""
    metrics, _ = stepped(tiny(f"rollout/precision={rollout}", "actor.dtype=bf16", *TRAINERS[trainer]))
    assert (metrics["rollout_corr/k3_kl"] == 0) == (metrics["mismatch/log_ratio_max_abs"] == 0) == (rollout == trainer)
    assert metrics["actor/grad_norm"] > 0 and metrics["rollout_corr/k3_kl"] >= 0


def test_what_cannot_be_cast_is_refused(tiny):
    cast = "rollout/precision@actor.precision=fp8_block"
    for overrides, message in (
        ([cast], "actor.precision=fp8_block computes in bf16 and actor.dtype is fp32; set actor.dtype=bf16"),
        ([cast, "actor.dtype=bf16", "actor.zero_stage=3"], "actor.precision=fp8_block with actor.zero_stage=3"),
        (["rollout/precision@actor.precision=bf16", "actor.dtype=bf16"], "actor.precision=bf16 casts nothing"),
        (
            ["rollout/precision@actor.precision=mxfp8", "actor.dtype=bf16", "model.intermediate_size=48"],
            "actor.precision.weights=mxfp8 needs rows of a multiple of 32 values; model.intermediate_size is 48",
        ),
    ):
        with pytest.raises(UserError, match=message):
            tiny(*overrides)


MIXTURE = qwen3_config(
    MixtureConfig(
        name="qwen3_moe", hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True, router_aux_loss_coef=0.01,
    ), 13, 20,
)  # fmt: skip


def mixture():
    net = build(MIXTURE, 1)
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3)
    return net


@pytest.mark.parametrize("name", ["fp8_tensor", "nvfp4", "nvfp4_w4a4"])
def test_experts_are_cast_as_the_engine_casts_them(name):
    """The trainer takes the engine's experts, so that no flip hides a cast. Up to the order of sums, which can tip a code."""
    prompts, tokens = rows()
    actor = DeepSpeedActor(mixture(), settings(precision=precision(name)))
    engine = LocalEngine(MIXTURE, precision(name))
    engine.load_weights(actor.weights(), 0)
    theirs, routes = engine.score_routed(prompts, tokens)
    replay = Recorded(routes)
    with torch.no_grad():
        ours = actor.logp(prompts, tokens, replay)[0]
        uncast = DeepSpeedActor(mixture(), settings()).logp(prompts, tokens, replay)[0]
    assert (ours - theirs).abs().mean() < 0.1 * (uncast - theirs).abs().mean()


def test_without_a_cast_the_experts_are_those_of_transformers():
    """The loop over experts with nothing cast: transformers' own forward, with its gradients, in fp64.

    Only the second product's input, which is no fp32 value, is rounded to fp32.
    """
    experts = mixture().model.layers[0].mlp.experts.double()
    generator = torch.Generator().manual_seed(0)
    x, weights = torch.randn(20, 64, generator=generator).double(), torch.rand(20, 2, generator=generator).double()
    ids = torch.stack([torch.randperm(4, generator=generator)[:2] for _ in range(20)])
    results = []
    uncast = Arithmetic(PrecisionConfig(name="fp32", compute="fp32", weights=None, activations=None))
    for forward in (experts.forward, _CastExperts(uncast, experts).forward):
        leaves = x.clone().requires_grad_(), weights.clone().requires_grad_()
        y = forward(leaves[0], ids, leaves[1])
        results.append([y, *torch.autograd.grad(y.tanh().sum(), [*leaves, *experts.parameters()])])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_the_gradient_of_cast_experts_is_straight_through():
    """y = Σ w·(q(silu(g)·u))·q(W_d)ᵀ with [g, u] = q(x)·q(W_gu)ᵀ and q(v) = v + (Q(v) − v), by autograd in fp64."""
    experts = mixture().model.layers[0].mlp.experts.double()
    made, generator = Arithmetic(precision("nvfp4_w4a4")), torch.Generator().manual_seed(0)
    x, ids = torch.randn(6, 64, generator=generator).double(), torch.tensor([[0, 2]] * 3 + [[3, 1]] * 3)
    weights = torch.rand(6, 2, generator=generator).double()

    def through(value, quantised):
        return value + (quantised - value).detach()

    def rows_of(value):
        return through(value, Arithmetic.values(*wide(made.activation(value.detach().float()))))

    def matrix(value):
        return through(value, EngineMatrix(*wide(made.weight(value.detach().float())[:3])).values().t())

    leaf = x.clone().requires_grad_()
    written = torch.zeros_like(x)
    for row in range(6):
        for slot in range(2):
            expert = int(ids[row, slot])
            gate, up = (rows_of(leaf[row : row + 1]) @ matrix(experts.gate_up_proj[expert]).t()).chunk(2, -1)
            inner = rows_of(torch.nn.functional.silu(gate) * up)
            written = written.index_add(
                0, torch.tensor([row]), inner @ matrix(experts.down_proj[expert]).t() * weights[row, slot]
            )
    expected = torch.autograd.grad(written.sum(), [leaf, *experts.parameters()])
    other = x.clone().requires_grad_()
    ours = _CastExperts(made, experts).forward(other, ids, weights)
    for actual, wanted in zip(torch.autograd.grad(ours.sum(), [other, *experts.parameters()]), expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-6, atol=1e-6)  # the second cast is of fp32 values


@pytest.mark.slow
def test_two_ranks_train_as_one(tiny, root):
    """Up to the order of sums, which can tip a code of an activation: so to 2 %."""
    shared = ["steps=2", "rollout/precision=fp8_block", "rollout/precision@actor.precision=fp8_block", "actor.dtype=bf16"]
    train(one := tiny(*shared))
    run(torchrun(*TINY, f"run.root={root}", "run.sweep=two-ranks-cast", "actor.zero_stage=2", *shared))
    [folder] = run_folders(root / "two-ranks-cast")
    for row, other in zip(folder.metrics()[:2], folder_of(one).metrics()[:2], strict=True):
        assert row["rollout_corr/k3_kl"] == other["rollout_corr/k3_kl"] == 0
        assert row["actor/grad_norm"] == pytest.approx(other["actor/grad_norm"], rel=0.02)
