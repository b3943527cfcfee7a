"""Advantages and KL estimators against hand arithmetic."""

from __future__ import annotations

import math

import pytest
import torch

from algos.advantages import (
    dr_grpo,
    gpg,
    grpo,
    grpo_batch_std,
    maxrl,
    opo,
    pass_at_k,
    reinforce,
    reinforce_pp,
    reinforce_pp_baseline,
    remax,
    rloo,
)
from algos.kl import absolute, k1, k2, k3, k3_k2, k3_unbiased
from algos.registry import ADVANTAGES
from algos.returns import gae
from tests.algos.algo_cases import f64


def close(actual, expected, tolerance=1e-5):
    torch.testing.assert_close(actual, f64(expected), atol=tolerance, rtol=0)


def test_group_baselines():
    rewards = f64([[1, 0, 0, 1], [3, 3, 3, 3]])
    close(dr_grpo(rewards), [[0.5, -0.5, -0.5, 0.5], [0] * 4])
    # std with n − 1: √(4·.25/3) = .577350
    close(grpo(rewards), [[0.866025, -0.866025, -0.866025, 0.866025], [0] * 4])
    # 1 − (0 + 0 + 1)/3, 0 − (1 + 0 + 1)/3
    close(rloo(rewards), [[2 / 3, -2 / 3, -2 / 3, 2 / 3], [0] * 4])
    close(maxrl(rewards), [[1, -1, -1, 1], [0] * 4])
    close(maxrl(f64([[0, 0, 0, 0], [1, 0, 0, 0]])), [[0] * 4, [3, -1, -1, -1]])
    close(remax(rewards, greedy=f64([1, 2])), [[0, -1, -1, 0], [1] * 4])


def test_no_baseline_is_the_reward():
    close(reinforce(f64([[1, -2]])), [[1, -2]])


def test_the_std_of_the_batch():
    """Rewards [1, 0 | 3, 4]: mean 2, std √((1 + 4 + 1 + 4)/3) = 1.825742."""
    rewards = f64([[1, 0], [3, 4]])
    close(grpo_batch_std(rewards), [[0.5 / 1.825742, -0.5 / 1.825742], [-0.5 / 1.825742, 0.5 / 1.825742]])


def test_gpg_makes_up_for_groups_without_a_gradient():
    """The first and third prompt's 8 responses, of 12, have unequal rewards: A = 12/8 times R − mean."""
    rewards = f64([[1, 0, 0, 1], [3, 3, 3, 3], [0, 0, 0, 4]])
    close(gpg(rewards), [[0.75, -0.75, -0.75, 0.75], [0] * 4, [-1.5, -1.5, -1.5, 4.5]])
    assert (gpg(f64([[1, 1], [2, 2]])) == 0).all()


def test_the_best_response_gets_its_lead():
    rewards = f64([[1, 0, 0, 0], [1, 1, 0, 0], [0.2, 0.9, 0.5, -3]])
    close(pass_at_k(rewards, std=False), [[1, 0, 0, 0], [0] * 4, [0, 0.4, 0, 0]])
    # std of [1, 0, 0, 0]: √((.75² + 3·.25²)/3) = .5
    close(pass_at_k(rewards[:1], std=True), [[2, 0, 0, 0]])
    assert (pass_at_k(f64([[5]]), std=True) == 0).all()


def test_skyrl_leave_one_out_and_mean():
    close(rloo(f64([[6, 3], [9, 12]])), [[3, -3], [-3, 3]])
    close(dr_grpo(f64([[6, 3], [9, 12]])), [[1.5, -1.5], [-1.5, 1.5]])


def test_the_length_weighted_baseline():
    """(1·3 + 0·1)/(3 + 1) = .75; with equal lengths it is the mean."""
    close(opo(f64([[1, 0]]), lengths=torch.tensor([[3, 1]])), [[0.25, -0.75]])
    rewards = f64([[1, 0, 2]])
    torch.testing.assert_close(opo(rewards, lengths=torch.full((1, 3), 5)), dr_grpo(rewards))


def test_reinforce_pp_whitens_over_tokens():
    """R = [1, 0 | 0, 2] with 3, 1, 1, 1 tokens: m = 5/6; s² = (3·(1/6)² + 2·(5/6)² + (7/6)²)/5 = 2.833333/5."""
    rewards, lengths = f64([[1, 0], [0, 2]]), torch.tensor([[3, 1], [1, 1]])
    s = (2.8333333 / 5) ** 0.5
    close(reinforce_pp(rewards, lengths=lengths), [[1 / 6 / s, -5 / 6 / s], [-5 / 6 / s, 7 / 6 / s]])
    # minus the groups' means: [.5, −.5 | −1, 1], m = (1.5 − .5)/6 = 1/6; s² = (3·(1/3)² + (2/3)² + (7/6)² + (5/6)²)/5 =
    # .566667
    close(reinforce_pp_baseline(rewards, lengths=lengths), [[1 / 3 / s, -2 / 3 / s], [-7 / 6 / s, 5 / 6 / s]])


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "maxrl", "gpg"])
def test_a_single_response_has_no_advantage(name):
    assert (ADVANTAGES[name](f64([[5], [0]])) == 0).all()


def test_gae_by_hand():
    """R = [0, 0, 1], V = [.5, .4, .2], γ = 1, λ = .5: δ = [−.1, −.2, .8]; A = [−.1 + .5·.2, −.2 + .5·.8, .8]."""
    mask = torch.ones(1, 3, dtype=torch.bool)
    rewards, values = f64([[0, 0, 1]]), f64([[0.5, 0.4, 0.2]])
    close(gae(rewards, mask=mask, values=values, gamma=1.0, lam=0.5), [[0, 0.2, 0.8]])
    close(gae(rewards, mask=mask, values=values, gamma=1.0, lam=1.0), [[0.5, 0.6, 0.8]])  # reward-to-go − V
    close(gae(rewards, mask=mask, values=values, gamma=0.5, lam=0.0), [[-0.3, -0.3, 0.8]])  # δ with γ = .5


def test_gae_without_values_is_the_discounted_return():
    """SkyRL: rewards [1, 2, 3], γ = .5: 3; 2 + 1.5; 1 + 1.75."""
    mask, zeros = torch.ones(1, 3, dtype=torch.bool), torch.zeros(1, 3).double()
    close(gae(f64([[1, 2, 3]]), mask=mask, values=zeros, gamma=0.5, lam=1.0), [[2.75, 3.5, 3]])


def test_gae_skips_tokens_the_policy_did_not_write():
    mask = torch.tensor([[False, True, False, False, True, True, False]])
    inside = mask[0].nonzero()[:, 0]
    rewards, values = torch.full((1, 7), torch.nan).double(), torch.full((1, 7), torch.nan).double()
    rewards[0, inside], values[0, inside] = f64([0, 0, 1]), f64([0.5, 0.4, 0.2])
    close(gae(rewards, mask=mask, values=values, gamma=1.0, lam=0.5), [[0, 0.0, 0, 0, 0.2, 0.8, 0]])


@pytest.mark.parametrize("far", [22.0, 1e3, 1e9, 3.4e38])
def test_k3_of_a_fill_value_is_bounded(far):
    """x = far − 1: e²⁰ − 1 − 20, of gradient 0, and never negative. x = 1 − far: −x − 1, which pulls π_θ down to π_ref."""
    logp = torch.tensor([[-far, -1.0, -1.0]]).requires_grad_()
    ref, mask = torch.tensor([[-1.0, -1.5, -far]]), torch.ones(1, 3, dtype=torch.bool)
    value = k3(logp, ref, mask)
    assert value[0].tolist() == pytest.approx([math.expm1(20) - 20, math.expm1(-0.5) + 0.5, far - 2], rel=1e-6)
    (gradient,) = torch.autograd.grad(value.sum(), logp)
    assert gradient[0].tolist() == pytest.approx([0, 1 - math.exp(-0.5), 1], rel=1e-6)


def test_kl_values_and_gradients():
    """log π = −1, log π_ref = [−.5, −1, −1.7], x = [.5, 0, −.7]: k3 = eˣ − 1 − x; gradients 1 − eˣ and −x."""
    logp = f64([[-1, -1, -1]]).requires_grad_()
    ref, mask = f64([[-0.5, -1, -1.7]]), torch.ones(1, 3, dtype=torch.bool)
    expected = {
        k1: ([-0.5, 0, 0.7], [1, 1, 1]),
        absolute: ([0.5, 0, 0.7], [-1, 0, 1]),
        k2: ([0.125, 0, 0.245], [-0.5, 0, 0.7]),
        k3: ([0.148721, 0, 0.196585], [-0.648721, 0, 0.503415]),
        k3_k2: ([0.148721, 0, 0.196585], [-0.5, 0, 0.7]),
    }
    for estimator, (value, gradient) in expected.items():
        out = estimator(logp, ref, mask)
        close(out.detach(), [value])
        close(torch.autograd.grad(out.sum(), logp)[0], [gradient])
    # r = e^[.2, 0, −.1] multiplies the value of k3 and the gradient of k2
    prox = f64([[-1.2, -1, -0.9]])
    out = k3_unbiased(logp, ref, mask, prox)
    r = f64([0.2, 0, -0.1]).exp()
    torch.testing.assert_close(out.detach(), (f64([[0.1487212707, 0, 0.1965853038]]) * r), atol=1e-9, rtol=0)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), logp)[0], f64([[-0.5, 0, 0.7]]) * r)


def test_nemo_kl_values():
    """log π = −1, log π_ref = [0, −15, −30]: k1 = −x, k2 = x²/2, k3 = eˣ − 1 − x with x = [1, −14, −29]."""
    logp, ref, mask = f64([[-1, -1, -1]]), f64([[0, -15, -30]]), torch.ones(1, 3, dtype=torch.bool)
    close(k1(logp, ref, mask), [[-1, 14, 29]])
    close(k2(logp, ref, mask), [[0.5, 98, 420.5]])
    close(k3(logp, ref, mask), [[0.718282, 13.000001, 28]])


@pytest.mark.parametrize("estimator", [k1, absolute, k2, k3, k3_k2])
def test_kl_at_extremes_and_in_padding(estimator):
    logp = f64([[0, -1e4, -1, torch.nan]]).requires_grad_()
    ref, mask = f64([[-1e4, 0, -1, torch.inf]]), torch.tensor([[True, True, True, False]])
    out = estimator(logp, ref, mask)
    gradient = torch.autograd.grad(out.sum(), logp)[0]
    assert out.isfinite().all() and gradient.isfinite().all()
    assert out[0, 2] == 0 and out[0, 3] == 0 and gradient[0, 3] == 0
