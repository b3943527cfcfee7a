"""PPO's critic: rewards by token, whitening, the value loss; and GAE as an exact estimate of the advantage."""

from __future__ import annotations

import functools

import pytest
import torch

from algos.advantages import gpg
from algos.batch import Batch
from algos.corrections.apply import correct
from algos.corrections.spec import Correction, Weight
from algos.critic import explained_variance, token_rewards, value_loss, whiten
from algos.enumerable import EnumerablePolicy, policies, rewards
from algos.objective import Objective
from algos.reductions import Counts
from algos.registry import ADVANTAGES, LOSSES
from algos.returns import gae
from tests.algos.algo_cases import LOSS_PARAMS

SPACE = EnumerablePolicy.of(3, 3)
LOGITS, WRONG = policies(SPACE, 0.5)
P = SPACE.logp(LOGITS).sum(-1).exp()
STATES = len(LOGITS)


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def close(actual, expected, tolerance=1e-12):
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=torch.float64), atol=tolerance, rtol=tolerance)


def test_the_reward_falls_on_the_last_token_and_the_penalty_on_each():
    mask = torch.tensor([[1, 1, 0, 1, 0], [0, 0, 0, 0, 0]], dtype=torch.bool)
    penalty = f64([[0.1, 0.2, 9, 0.3, 9], [9, 9, 9, 9, 9]])
    close(token_rewards(f64([2, 5]), mask), [[0, 0, 0, 2, 0], [0, 0, 0, 0, 0]])
    close(token_rewards(f64([2, 5]), mask, penalty), [[-0.1, -0.2, 0, 1.7, 0], [0, 0, 0, 0, 0]])


def test_whitening_by_hand():
    """1, 2, 3: mean 2, variance (1 + 0 + 1)/2 = 1."""
    mask = torch.tensor([[1, 1, 0], [0, 1, 0]], dtype=torch.bool)
    root = (1 + 1e-8) ** 0.5
    close(whiten(f64([[1, 3, 99], [torch.nan, 2, 99]]), mask), [[-1 / root, 1 / root, 0], [0, 0, 0]])
    close(whiten(f64([[4, 4, 4], [4, 4, 4]]), mask), torch.zeros(2, 3))
    close(whiten(f64([[4, 1, 1], [1, 1, 1]]), mask & (torch.arange(3) < 1)), torch.zeros(2, 3))
    close(whiten(f64([[4, 1, 1], [1, 1, 1]]), mask & False), torch.zeros(2, 3))


def test_value_loss_by_hand():
    """V_old = 1, c = 0.5, so V counts as at most 1.5. R = 0: V = 2 has 2² > 1.5². R = 3: V = 2 has 1 < 1.5², the clipped one."""
    values = f64([2, 2, 1.2, 0.2]).requires_grad_()
    losses, clipped = value_loss(values, f64([1, 1, 1, 1]), f64([0, 3, 0, -1]), 0.5)
    close(losses.detach(), [2, 1.125, 0.72, 1.125])  # the last: 0.2 counts as 0.5, ½·1.5² > ½·1.2²
    assert clipped.tolist() == [False, True, False, True]
    losses.sum().backward()
    close(values.grad, [2, 0, 1.2, 0])
    plain, never = value_loss(values.detach(), f64([1, 1, 1, 1]), f64([0, 3, 0, -1]), None)
    close(plain, [2, 0.5, 0.72, 0.72])
    assert not never.any()


def test_explained_variance_by_hand():
    """R = 0, 2: variance 2. V = 0, 1: R − V = 0, 1 has 0.5. V = R + 3 leaves 0, a constant V all."""
    mask, returns = torch.tensor([[True, True, False]]), f64([[0, 2, 50]])
    close(explained_variance(f64([[0, 1, torch.nan]]), returns, mask), 1 - 0.5 / (2 + 1e-5))
    close(explained_variance(returns + 3, returns, mask), 1)
    close(explained_variance(f64([[4, 4, 4]]), returns, mask), 1 - 2 / (2 + 1e-5))
    assert explained_variance(returns, returns, mask & False).isnan()


def expected_after(values: torch.Tensor) -> torch.Tensor:
    """E[x | the tokens up to t] of x [N, T], for each response and t: a finite sum over all that begin so."""
    out = torch.zeros_like(values)
    for t in range(values.shape[1]):
        same = (SPACE.tokens[:, None, : t + 1] == SPACE.tokens[None, :, : t + 1]).all(-1).double() * P
        out[:, t] = (same @ values[:, t]) / same.sum(-1)
    return out


def exact(gamma: float, token: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(V of the state before each token, Q of each token) of rewards by token [N, T]."""
    q = torch.zeros_like(token)
    following = torch.zeros(len(token), dtype=torch.float64)
    v = torch.zeros_like(token)
    for t in reversed(range(token.shape[1])):
        q[:, t] = token[:, t] + gamma * following  # a reward that the tokens up to t decide
        same = (SPACE.tokens[:, None, :t] == SPACE.tokens[None, :, :t]).all(-1).double() * P
        v[:, t] = following = (same @ q[:, t]) / same.sum(-1)
    return v, q


def rewards_by_token() -> torch.Tensor:
    """A terminal reward, and a penalty of each token by its prefix, as a KL in the reward is."""
    penalty = torch.rand(STATES, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return token_rewards(rewards(SPACE), SPACE.mask, penalty[SPACE.state, SPACE.tokens])


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_gae_with_the_exact_values_is_the_exact_advantage(gamma, lam):
    """In expectation over what follows a token, A = Q − V for each λ; with λ = 0 in every single response."""
    token = rewards_by_token()
    v, q = exact(gamma, token)
    estimate = gae(token, mask=SPACE.mask, values=v, gamma=gamma, lam=lam)
    close(expected_after(estimate), q - v)
    if lam == 0:
        close(estimate, q - v)


def test_with_lambda_1_the_target_is_the_monte_carlo_return_whatever_the_values():
    token, wrong = rewards_by_token(), WRONG[SPACE.state, 0]
    target = gae(token, mask=SPACE.mask, values=wrong, gamma=1.0, lam=1.0) + wrong
    close(target, token.flip(-1).cumsum(-1).flip(-1))
    v, _ = exact(1.0, token)
    values = torch.zeros(STATES, dtype=torch.float64).scatter(0, SPACE.state.flatten(), v.flatten())
    weight = P[:, None].expand_as(token)
    sums = torch.zeros(2, STATES, dtype=torch.float64)
    sums[0].scatter_add_(0, SPACE.state.flatten(), (weight * target).flatten())
    sums[1].scatter_add_(0, SPACE.state.flatten(), weight.flatten())
    close(sums[0] / sums[1], values)  # the values that the unclipped loss has its minimum at are the exact ones


def policy_gradient(advantages: torch.Tensor) -> torch.Tensor:
    logits = LOGITS.clone().requires_grad_()
    (P[:, None] * advantages * SPACE.logp(logits)).sum().backward()
    return logits.grad


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_the_gradient_is_exact_with_exact_values_and_biased_with_wrong_ones_unless_lambda_is_1(lam):
    logits = LOGITS.clone().requires_grad_()
    (SPACE.logp(logits).sum(-1).exp() * rewards(SPACE)).sum().backward()
    token = token_rewards(rewards(SPACE), SPACE.mask)
    v, _ = exact(1.0, token)
    close(policy_gradient(gae(token, mask=SPACE.mask, values=v, gamma=1.0, lam=lam)), logits.grad)
    wrong = policy_gradient(gae(token, mask=SPACE.mask, values=WRONG[SPACE.state, 0], gamma=1.0, lam=lam))
    assert ((wrong - logits.grad).abs().max() < 1e-12) == (lam == 1)


@pytest.mark.parametrize("level", [None, "token", "sequence"])
@pytest.mark.parametrize("loss", sorted(set(LOSSES.names()) - {"gpg"}))
def test_every_loss_takes_advantages_by_token(loss, level):
    """A token's advantage decides its own gradient: doubling that of one token alone changes the gradient of the batch."""
    token = token_rewards(rewards(SPACE), SPACE.mask)
    advantages = whiten(gae(token, mask=SPACE.mask, values=WRONG[SPACE.state, 0], gamma=1.0, lam=0.9), SPACE.mask)
    weight = Weight(level, "truncate", upper=2.0) if level else Weight()
    function = functools.partial(LOSSES[loss], **LOSS_PARAMS[loss])
    objective = Objective(function, Correction(weight=weight), "old", "token_mean")
    gradients = []
    for factor in (1.0, 2.0):
        changed = advantages.clone()
        changed[0, 1] *= factor
        batch = Batch(SPACE.logp(WRONG), SPACE.mask, SPACE.logp(LOGITS), changed)
        corrected = correct(batch, objective.correction)
        logp = (SPACE.logp(LOGITS) + 0.01).requires_grad_()
        objective(logp, objective.select(batch, corrected.counted), corrected, Counts.of(SPACE.mask))[0].backward()
        assert logp.grad.isfinite().all()
        gradients.append(logp.grad)
    assert (gradients[0] != gradients[1]).any() == (loss != "cross_entropy")


def test_gae_is_registered_as_an_estimator_by_token():
    assert ADVANTAGES["gae"] is gae and gae.needs == ("mask", "values") and not gpg.needs
