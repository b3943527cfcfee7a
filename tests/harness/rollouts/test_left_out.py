"""Layers that a precision leaves out: which they are, that they compute as BF16 does, and what is refused."""

import pytest
import torch

from harness.compose import compose
from harness.config import parse
from harness.errors import UserError
from harness.models import build, qwen3_config, qwen3_sizes
from harness.rollouts.architecture import FUSED
from harness.rollouts.left_out import check_left_out, is_cast
from harness.rollouts.local import LocalEngine
from harness.validate import check
from tests.harness.engines import precision
from tests.harness.train.model.test_straight_through import MIXTURE

SHAPE = qwen3_config(qwen3_sizes(hidden=64, layers=4, heads=4, kv_heads=2, head=32, mlp=96), 13, 30)


def left(name="fp8_tensor", **keys):
    return precision(name).model_copy(update=keys)


def scored(shape, net, chosen):
    engine = LocalEngine(shape, chosen)
    engine.load_weights(net.named_parameters(), 0)
    generator = torch.Generator().manual_seed(0)
    prompts, tokens = (torch.randint(0, 4, (12, n), generator=generator) for n in (3, 6))
    return engine.score(prompts, tokens), engine


def test_the_first_and_last_layers_and_named_ones_are_left_out():
    chosen = left(first_layers=1, last_layers=1, ignore=("model.layers.1.mlp.down_proj", "re:.*self_attn"))
    cast = [[is_cast(chosen, i, 4, FUSED[key]) for key in ("qkv", "o", "gate_up", "down")] for i in range(4)]
    assert cast == [[False] * 4, [False, False, True, False], [False, False, True, True], [False] * 4]


@pytest.mark.parametrize("kind", ["dense", "moe"])
@pytest.mark.parametrize("name", ["fp8_tensor", "fp8_block", "int8", "nvfp4_w4a4"])
def test_a_model_whose_layers_are_all_left_out_computes_as_bf16_to_the_bit(kind, name):
    """`check` refuses it; here it is the zero of the list."""
    shape = SHAPE if kind == "dense" else MIXTURE
    net = build(shape, 0)
    plain, quantised = scored(shape, net, precision("bf16"))[0], scored(shape, net, precision(name))[0]
    all_out = scored(shape, net, left(name, ignore=("re:.*",)))[0]
    assert torch.equal(all_out, plain) and not torch.equal(quantised, plain)


def test_only_the_layers_that_are_left_keep_their_weights():
    net = build(SHAPE, 0)
    _, engine = scored(SHAPE, net, left(last_layers=1, ignore=("re:.*o_proj",)))
    weight = net.model.layers[3].mlp.down_proj.weight.detach().bfloat16().float()
    assert torch.equal(engine.layers[3]["down"].values().t(), weight)
    assert [layer["o"].cast for layer in engine.layers] == [False] * 4
    assert [layer["down"].cast for layer in engine.layers] == [True, True, True, False]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"ignore": ("model.layers.0.self_attn.q_proj",)},
            r"ignore: model\.layers\.0\.self_attn\.k_proj, .*v_proj too; an",
        ),
        ({"ignore": ("lm_head",)}, r"ignore=lm_head: names no linear layer; the first are model\.layers\.0\.self_attn\.q_proj"),
        ({"first_layers": 3, "last_layers": 1}, r"first_layers=3, last_layers=1 and ignore leave none of 4 layers to quantise"),
    ],
)
def test_what_leaves_nothing_or_half_a_matrix_is_refused(keys, message):
    with pytest.raises(UserError, match=message):
        check_left_out(left(**keys), 4, has_experts=False)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rollout/precision=bf16", "+rollout.precision.first_layers=1"], r"first_layers=1 has no effect with weights=null"),
        (["+rollout.precision.ignore=['re:(']"], r"ignore=re:\(: no regular expression"),
        (["rollout/precision=int8", "rollout.precision.weights=int4_group"], r"INT4 is W4A16 here; set activations=null"),
    ],
)
def test_what_has_no_effect_is_refused(overrides, message):
    with pytest.raises(UserError, match=message):
        parse(compose(*overrides))


def test_a_run_may_leave_layers_out_of_rollout_and_trainer_alike():
    both = [f"rollout/precision{at}=nvfp4_w4a4" for at in ("", "@actor.precision")]
    left_alike = ["+rollout.precision.last_layers=1", "+actor.precision.last_layers=1"]
    check(parse(compose("model=moe", "actor.dtype=bf16", *both, *left_alike)))
