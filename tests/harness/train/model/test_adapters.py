"""Low-rank adapters: trained alone, and apart or merged at a sync, against PEFT's own layers and rational arithmetic."""

from fractions import Fraction

import pytest
import torch
from pydantic import ValidationError

from harness.config import LoraConfig, PrecisionConfig
from harness.errors import UserError
from harness.models import build
from harness.rollouts.local import LocalEngine
from harness.train.model import adapters
from harness.train.model.actor import DeepSpeedActor
from tests.harness.train.model.test_actor import SHAPE, data, settings, trained
from tests.harness.train.model.test_straight_through import MIXTURE
from tests.harness.train.options.test_ahead import assert_resumes_to_the_bit


def actor_with(sync: str, seed: int = 0, **changes) -> DeepSpeedActor:
    lora = LoraConfig(rank=4, sync=sync)
    return DeepSpeedActor(build(SHAPE, 0), settings(weight_decay=0.0, lora=lora, **changes), seed=seed)


def weights_of(actor: DeepSpeedActor, synced: bool = False) -> dict[str, torch.Tensor]:
    return {name: w.detach().clone() for name, w in (actor.synced_weights() if synced else actor.weights())}


def engine_with(weights, dtype: str) -> LocalEngine:
    engine = LocalEngine(SHAPE, PrecisionConfig(name=dtype, compute=dtype, weights=None, activations=None))
    engine.load_weights(weights, 0)
    return engine


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_the_optimizer_moves_the_adapters_alone(stage, tmp_path):
    """Before the first step the policy is that without adapters, as B is 0. A checkpoint holds adapters and frozen weights."""
    actor, plain = actor_with("apart", zero_stage=stage), DeepSpeedActor(build(SHAPE, 0), settings())
    prompts, tokens, _ = data(9)
    with torch.no_grad():
        torch.testing.assert_close(actor.logp(prompts, tokens)[0], plain.logp(prompts, tokens)[0], rtol=0, atol=1e-6)
    before = weights_of(actor)
    assert before.keys() - weights_of(plain).keys() == {
        f"model.layers.{layer}.{part}_proj.lora_{key}.weight"
        for layer in range(2)
        for key in "AB"
        for part in ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down")
    }
    trained(actor, range(3))
    after = weights_of(actor)
    assert {name for name, w in after.items() if not torch.equal(w, before[name])} == {n for n in after if ".lora_" in n}
    actor.save(tmp_path)
    for ranks, base in ((1, 1), (2, 0)):  # on two ranks DeepSpeed restores what is trained, and the model has the rest
        lora = LoraConfig(rank=4, sync="apart")
        other = DeepSpeedActor(build(SHAPE, base), settings(weight_decay=0.0, lora=lora, zero_stage=stage), seed=5)
        other.load(tmp_path, ranks if stage else 1)
        assert all(torch.equal(w, after[name]) for name, w in other.weights())


def test_weights_that_were_moved_in_place_are_not_resharded(tmp_path):
    actor = actor_with("merged_in_place", zero_stage=1)
    actor.save(tmp_path)
    with pytest.raises(UserError, match=r"actor\.lora\.sync=merged_in_place needs the frozen weights .* resume on 2 ranks"):
        actor.load(tmp_path, ranks=2)


def test_adapters_are_drawn_by_the_seed():
    first, second, third = (weights_of(actor_with("apart", seed=seed)) for seed in (0, 0, 1))
    name = "model.layers.0.mlp.up_proj.lora_A.weight"
    assert torch.equal(first[name], second[name]) and not torch.equal(first[name], third[name])


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_an_engine_computes_adapters_apart_as_the_trainer_does(dtype):
    """In fp32 to rounding. In bf16 as close as an engine is to a trainer without adapters: sums have another order."""
    actor, plain = actor_with("apart", dtype=dtype), DeepSpeedActor(build(SHAPE, 0), settings(dtype=dtype))
    prompts, tokens, _ = data(9)
    off = {}
    for name, one in {"adapters": actor, "plain": plain}.items():
        trained(one, range(3))
        with torch.no_grad():
            logp = one.logp(prompts, tokens)[0]
        off[name] = (engine_with(one.weights(), dtype).score(prompts, tokens) - logp).abs().mean().item()
    frozen = ((name, w) for name, w in actor.weights() if ".lora_" not in name)
    with torch.no_grad():
        moved = (engine_with(frozen, dtype).score(prompts, tokens) - actor.logp(prompts, tokens)[0]).abs().mean().item()
    assert off["adapters"] < (1e-6 if dtype == "fp32" else 3 * off["plain"]) and moved > 20 * off["adapters"]


def test_merged_weights_are_those_that_peft_merges_and_the_trainer_keeps_its_own():
    actor = actor_with("merged", dtype="bf16")
    trained(actor, range(3))
    before, synced = weights_of(actor), weights_of(actor, synced=True)
    assert all(torch.equal(w, before[name]) for name, w in actor.weights())
    layer = actor.engine.module.get_submodule("model.layers.1.mlp.down_proj")
    layer.merge()
    assert torch.equal(synced["model.layers.1.mlp.down_proj.weight"], layer.base_layer.weight)
    assert synced.keys() == {name for name in before if ".lora_" not in name}
    assert synced["model.layers.0.mlp.up_proj.weight"].dtype == torch.bfloat16


def test_merging_in_place_leaves_rounding_errors_in_the_frozen_weights():
    """W = 1 − 2⁻⁸ and s·B·A = 2⁻⁷. BF16 has spacings 2⁻⁸ below 1 and 2⁻⁷ above.

    Their sum 1 + 2⁻⁸ lies halfway between 1 and 1 + 2⁻⁷, and rounds to 1, whose last bit is even. 1 − 2⁻⁷ is on the grid.
    So a cycle moves W by −2⁻⁸, and a second one, from 1 − 2⁻⁷, by nothing: 1 − 2⁻⁷ + 2⁻⁷ = 1.
    """
    actor = actor_with("merged_in_place", dtype="bf16")
    layer = actor.engine.module.get_submodule("model.layers.0.mlp.up_proj")
    with torch.no_grad():
        layer.base_layer.weight.fill_(1 - 2.0**-8)
        for part, value in ((layer.lora_A["default"], 2.0**-10), (layer.lora_B["default"], 1.0)):
            part.weight.fill_(value)  # s·B·A = 2 · 4 · 2⁻¹⁰
    held = []
    for _ in range(2):
        synced = weights_of(actor, synced=True)["model.layers.0.mlp.up_proj.weight"]
        assert synced.eq(1).all()
        held.append(layer.base_layer.weight.detach().clone())
    for weight in held:
        assert {Fraction(w) for w in weight.flatten().tolist()} == {1 - Fraction(1, 2**7)}


def test_a_mixture_has_adapters_in_its_attention_alone():
    net = build(MIXTURE, 0)
    adapters.add_adapters(net, LoraConfig(rank=2, sync="apart"), 0)
    adapted = {name.split(".lora_")[0].rpartition(".")[2] for name, _ in net.named_parameters() if ".lora_" in name}
    assert adapted == {"q_proj", "k_proj", "v_proj", "o_proj"}


@pytest.mark.parametrize("changes", [{"zero_stage": 3}, {"dtype": "bf16", "masters": "none"}, {"compile": True}])
def test_what_adapters_were_not_tried_with_is_refused(changes):
    with pytest.raises(ValidationError, match=r"lora with actor\.\w+"):
        settings(lora=LoraConfig(rank=4, sync="apart"), **changes)


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["apart", "merged", "merged_in_place"])
def test_a_run_resumes_to_the_bit_and_adapters_apart_are_exact(tiny, sync):
    """Rollouts by the trainer's own computation have a ratio of exactly 1. Merged weights are rounded once more."""
    overrides = [
        "actor.dtype=bf16",
        "rollout/precision=bf16",
        f"actor.lora={{rank: 4, sync: {sync}}}",
        "actor.lr=1e-2",
        "steps=4",
    ]
    rows = assert_resumes_to_the_bit(tiny, f"lora-{sync}", *overrides)
    k3 = [row["rollout_corr/k3_kl"] for row in rows[:4]]
    assert k3[0] == 0  # B is 0
    assert all(value == 0 for value in k3) if sync == "apart" else all(0 < value < 1e-2 for value in k3[1:])
