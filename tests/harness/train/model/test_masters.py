"""Weights on the BF16 grid: against rational arithmetic, torch's own BF16 parameters, and every ZeRO stage."""

from fractions import Fraction

import pytest
import torch
from pydantic import ValidationError

from harness.errors import UserError
from harness.models import build
from harness.train.model.actor import DeepSpeedActor
from harness.train.model.masters import keep_in_bf16, stochastic_bf16
from harness.train.options.changed_weights import ChangedWeights
from tests.harness.train.model.test_actor import SHAPE, settings, trained
from tests.harness.train.options.test_ahead import assert_resumes_to_the_bit

SPACING = 2.0**-7  # of BF16 in [1, 2): 8 bits of significand


def descended(rule, steps, lr, gradient=1.0):
    """Plain SGD from 1 along a constant gradient, so that each step is lr·gradient exactly."""
    weight = torch.nn.Parameter(torch.ones(4096))
    optimizer = torch.optim.SGD([weight], lr=lr)
    keep_in_bf16(optimizer, rule)
    torch.manual_seed(0)
    for _ in range(steps):
        weight.grad = torch.full_like(weight, -gradient)
        optimizer.step()
    return weight.detach()


def test_an_update_below_half_a_spacing_is_lost_without_masters():
    """1 + 2⁻⁹ is a quarter of a spacing above 1, and rounds to 1 each time. 1 + 3·2⁻⁹ is three quarters, and rounds up."""
    assert descended("none", 64, SPACING / 4).eq(1).all()
    assert descended("none", 1, SPACING * 3 / 4).eq(1 + SPACING).all()


def test_kahan_summation_loses_nothing_in_the_sum():
    """64 updates of a quarter of a spacing are 16 spacings; the compensation never exceeds half a spacing."""
    assert descended("kahan", 64, SPACING / 4).eq(1 + 16 * SPACING).all()
    for steps in range(1, 8):  # θ + c is exact while the compensation fits BF16: θ = R(1 + n/4 spacings)
        exact = Fraction(1) + Fraction(steps, 4) * Fraction(SPACING)
        assert abs(Fraction(descended("kahan", steps, SPACING / 4)[0].item()) - exact) <= Fraction(SPACING) / 2


def test_stochastic_rounding_keeps_the_expectation_and_the_neighbours():
    """4,096 weights a quarter of a spacing above 1: 1 or its neighbour, p = 1/4 up to 4 standard errors of 0.0068."""
    moved = descended("stochastic", 1, SPACING / 4)
    assert set(moved.tolist()) == {1.0, 1 + SPACING}
    assert (moved > 1).double().mean().item() == pytest.approx(0.25, abs=4 * (0.25 * 0.75 / 4096) ** 0.5)
    many = descended("stochastic", 64, SPACING / 4)
    assert many.double().mean().item() == pytest.approx(1 + 16 * SPACING, abs=4 * SPACING * (64 * 0.1875 / 4096) ** 0.5)


def test_stochastic_rounding_leaves_what_is_bf16_already():
    """All finite BF16 numbers, infinities and NaN."""
    every = torch.arange(2**16, dtype=torch.int32).sub(2**15).to(torch.int16).view(torch.bfloat16).float()
    assert torch.equal(stochastic_bf16(every).nan_to_num(7.0), every.nan_to_num(7.0))
    assert torch.equal(stochastic_bf16(every).isnan(), every.isnan())


def test_no_masters_is_what_torch_computes_for_bf16_parameters():
    """One SGD step of bf16 parameters in torch: the sum in fp32, rounded to nearest. Held in fp32 it is the same."""
    generator = torch.Generator().manual_seed(1)
    start, gradient = (torch.randn(4096, generator=generator).bfloat16() for _ in range(2))
    theirs = torch.nn.Parameter(start.clone())
    theirs.grad = gradient.clone()
    torch.optim.SGD([theirs], lr=2.0**-6).step()
    ours = torch.nn.Parameter(start.float())
    ours.grad = gradient.float()
    optimizer = torch.optim.SGD([ours], lr=2.0**-6)
    keep_in_bf16(optimizer, "none")
    optimizer.step()
    assert torch.equal(ours.detach(), theirs.detach().float())


@pytest.mark.parametrize("rule", ["none", "kahan", "stochastic"])
@pytest.mark.parametrize("stage", [0, 1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_every_stage_keeps_the_grid_and_resumes_to_the_bit(stage, rule, tmp_path):
    """DeepSpeed's own BF16 weights are then its FP32 masters, to the bit; they differ from those with masters."""
    torch.manual_seed(0)
    actor = DeepSpeedActor(build(SHAPE, 0), settings(zero_stage=stage, dtype="bf16", masters=rule))
    counted = ChangedWeights(actor.optimizer)
    trained(actor, range(2))
    share = counted(None)["actor/changed_bf16"]
    assert 0.5 < share < 1
    actor.save(tmp_path)
    torch.manual_seed(1)
    expected = trained(actor, range(2, 4))
    held = [w for group in actor.optimizer.param_groups for w in group["params"]]
    assert all(torch.equal(w, w.bfloat16().float()) for w in held)
    other = DeepSpeedActor(build(SHAPE, 5), settings(zero_stage=stage, dtype="bf16", masters=rule))
    other.load(tmp_path, ranks=1)
    torch.manual_seed(1)
    assert trained(other, range(2, 4)) == expected
    for (_, a), (_, b) in zip(actor.weights(), other.weights(), strict=True):
        assert torch.equal(a, b)


def test_kahan_summation_is_not_resharded(tmp_path):
    """DeepSpeed's universal checkpoint holds AdamW's two moments and no compensation. Without it the weights can be read."""
    actor = DeepSpeedActor(build(SHAPE, 0), settings(zero_stage=1, dtype="bf16", masters="kahan"))
    trained(actor, range(1))
    actor.save(tmp_path)
    with pytest.raises(UserError, match=r"actor\.masters=kahan .* resume on 2 ranks"):
        actor.load(tmp_path, ranks=2)
    actor.load(tmp_path, ranks=1)
    reader = DeepSpeedActor(build(SHAPE, 5), settings(zero_stage=1, dtype="bf16", masters="none"))
    reader.load(tmp_path, ranks=2)
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(actor.weights(), reader.weights(), strict=True))


def test_fewer_weights_change_at_a_smaller_rate_and_more_with_masters():
    """An update of at most lr is below half a spacing of every weight above 2⁸·lr: without masters these never move."""

    def share(lr, rule):
        actor = DeepSpeedActor(build(SHAPE, 0), settings(lr=lr, weight_decay=0.0, dtype="bf16", masters=rule))
        counted = ChangedWeights(actor.optimizer)
        trained(actor, range(4))
        return counted(None)["actor/changed_bf16"]

    assert share(1e-2, "none") > 0.8 > 0.2 > share(1e-6, "none")
    assert share(1e-4, "fp32") >= share(1e-4, "none")


def test_masters_are_of_bf16_weights():
    with pytest.raises(ValidationError, match=r"masters=kahan is of BF16 weights, .* set actor\.dtype=bf16"):
        settings(masters="kahan")


@pytest.mark.slow
def test_a_run_with_stochastic_rounding_resumes_to_the_bit_and_counts(tiny):
    overrides = ["actor.dtype=bf16", "actor.masters=stochastic", "diagnostics.changed_weights=true", "steps=4"]
    rows = assert_resumes_to_the_bit(tiny, "stochastic", *overrides)
    assert all(0 < row["actor/changed_bf16"] < 1 for row in rows[:4])
