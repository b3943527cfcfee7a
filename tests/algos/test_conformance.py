"""Every built-in passes the suite shipped for plug-in authors, and the suite notices each kind of offence."""

from __future__ import annotations

import pytest
import torch

from algos.advantages import advantage, dr_grpo
from algos.conformance import check_advantage, check_filter, check_loss, example
from algos.losses import TokenLoss, loss
from algos.ratios import bounded_exp
from algos.registry import ADVANTAGES, CORRECTIONS, LOSSES
from tests.algos.algo_cases import LOSS_PARAMS, UNBOUNDED, f64


@pytest.mark.parametrize("name", LOSSES.names())
def test_losses_conform(name):
    check_loss(LOSSES[name], LOSS_PARAMS[name])


@pytest.mark.parametrize("name", UNBOUNDED)
def test_losses_conform_without_their_bounds(name):
    check_loss(LOSSES[name], UNBOUNDED[name])


def test_filters_conform():
    check_filter(CORRECTIONS["m2po"], {"tau": 0.04})


@pytest.mark.parametrize("name", sorted({*ADVANTAGES.names()} - {"gae"}))
def test_group_estimators_conform(name):
    inputs = {"lengths": torch.tensor([[3, 5, 1, 2]] * 3), "greedy": f64([0.5, 0, 1])}
    params = {"pass_at_k": {"std": True}}
    function = ADVANTAGES[name]
    check_advantage(function, params.get(name, {}), {key: inputs[key] for key in function.needs})


def _plain(function):
    """A loss that does without the decorator's masking."""
    function.anchored, function.select = True, None
    return function


@_plain
def leaks_padding(logp, logp_prox, advantages, mask):
    return TokenLoss(-advantages * (logp - logp_prox).exp() * mask)


@_plain
def leaks_gradient(logp, logp_prox, advantages, mask):
    zero = torch.zeros((), dtype=torch.promote_types(logp.dtype, torch.float32))
    logp, logp_prox, advantages = (torch.where(mask, t.to(zero.dtype), zero) for t in (logp, logp_prox, advantages))
    return TokenLoss(-advantages * bounded_exp(logp - logp_prox))


@loss(anchored=True)
def reduces(logp, logp_prox, advantages, mask):
    return TokenLoss((-advantages * bounded_exp(logp - logp_prox)).mean() * torch.ones_like(logp))


@loss(anchored=True)
def overflows(logp, logp_prox, advantages, mask):
    return TokenLoss(-advantages * (logp - logp_prox).exp())


@loss(anchored=True)
def has_a_default(logp, logp_prox, advantages, mask, *, upper=2.0):
    return TokenLoss(-advantages * bounded_exp(logp - logp_prox).clamp(max=upper))


@loss(anchored=False)
def denies_its_anchor(logp, logp_prox, advantages, mask):
    return TokenLoss(-advantages * logp * logp_prox.exp())


@loss(anchored=True)
def clips_everything(logp, logp_prox, advantages, mask):
    return TokenLoss(-advantages * bounded_exp(logp - logp_prox), torch.ones_like(mask))


def test_the_decorator_masks_and_promotes():
    check_loss(clips_everything, {})
    logp, prox, advantages, mask = example(torch.float64)
    mixed = clips_everything(logp.float(), prox, advantages, mask).loss
    assert torch.equal(mixed, clips_everything(logp.float().double(), prox, advantages, mask).loss)


@pytest.mark.parametrize(
    ("offender", "params", "rule"),
    [
        (leaks_padding, {}, "inputs give|in the padding"),
        (leaks_gradient, {}, "through logp only"),
        (reduces, {}, "padding matters|splitting the batch"),
        (overflows, {}, "not finite"),
        (has_a_default, {"upper": 2.0}, "no defaults"),
        (has_a_default, {}, "keyword-only parameters"),
    ],
)
def test_the_suite_notices(offender, params, rule):
    with pytest.raises(AssertionError, match=rule):
        check_loss(offender, params)


def test_the_suite_notices_a_loss_that_reads_an_anchor_it_does_not_declare():
    with pytest.raises(AttributeError):  # the decorator passes None, so the loss cannot read it in silence
        check_loss(denies_its_anchor, {})


def test_a_loss_that_is_nan_is_not_blamed_on_the_padding():
    @loss(anchored=False)
    def broken(logp, logp_prox, advantages, mask):
        return TokenLoss(logp * torch.nan)

    with pytest.raises(AssertionError, match="the loss is NaN or infinite on response tokens"):
        check_loss(broken, {})


def test_the_suite_notices_bad_filters_and_estimators():
    with pytest.raises(AssertionError, match="nothing is rejected"):
        check_filter(lambda l, mask: mask & (l > 0), {})
    with pytest.raises(AssertionError, match="order of responses"):
        check_filter(lambda l, mask: mask & (l >= l[:1].min()), {})

    @advantage()
    def by_place(rewards):
        return rewards - rewards[:, :1]

    with pytest.raises(AssertionError, match="order in a group"):
        check_advantage(by_place, {}, {})
    with pytest.raises(AssertionError, match="`needs` says"):
        check_advantage(dr_grpo, {}, {"lengths": torch.ones(3, 4)})
