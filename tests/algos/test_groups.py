"""The weight and the baseline of a group, against exact sums."""

import math

import pytest
import torch

from algos.groups import group_expectation_weights, off_policy_baseline
from tests.algos.algo_cases import f64


def test_the_weight_of_gepo_by_hand():
    """μ(y) = 1/2 and 1/8, so Ê = (1/4 + 1/64)/(1/2 + 1/8) = 17/40; π(y) = 1/4 and 1/2 give 10/17 and 20/17."""
    mu = f64([[[1, math.nan], [1 / 2, 1 / 4]]]).log()
    mu[0, 0, 0] = math.log(1 / 2)
    pi = f64([[[1 / 4, math.nan], [1, 1 / 2]]]).log()
    mask = torch.tensor([[[True, False], [True, True]]])
    weights = group_expectation_weights(pi, mu, mask)
    assert weights.tolist() == [pytest.approx([10 / 17, 20 / 17], rel=1e-12)]
    alone = group_expectation_weights(pi[:, :1], mu[:, :1], mask[:, :1])
    assert alone.item() == pytest.approx(1 / 2, rel=1e-12)  # of one response it is π/μ
    empty = group_expectation_weights(pi, mu, torch.tensor([[[True, False], [False, False]]]))
    assert empty.tolist() == [pytest.approx([1 / 2, 0])]


def test_the_weight_of_gepo_stays_finite_over_long_responses():
    """μ = e^−2000 and e^−3000: Ê is the larger one to within e^−1000. π(y_2) is e^−1000 of Ê, which is bounded at e^−20."""
    mu, mask = torch.full((1, 2, 1000), -2.0), torch.ones(1, 2, 1000, dtype=torch.bool)
    mu[:, 1] = -3.0
    assert group_expectation_weights(mu, mu, mask).tolist() == [pytest.approx([1.0, math.exp(-20)])]


def test_the_baseline_of_vcpo_by_hand_and_by_its_minimum():
    """w·n = 2 and 1: b = (4·1 + 1·0)/5. No other baseline gives a smaller sum of squared gradients."""
    rewards, weights, norms = f64([[1, 0], [1, 0]]), f64([[2, 1], [1, 1]]), f64([[1, 1], [3, 3]])
    advantages = off_policy_baseline(rewards, weights=weights, norms=norms)
    assert advantages[0].tolist() == pytest.approx([0.2, -0.8]) and advantages[1].tolist() == pytest.approx([0.5, -0.5])

    def spread(baseline):
        return ((weights * norms).square() * (rewards - baseline).square()).sum(-1)

    best = rewards[:, :1] - advantages[:, :1]
    assert all((spread(best) < spread(best + step)).all() for step in (-0.01, 0.01))
    assert off_policy_baseline(rewards, weights=torch.zeros(2, 2), norms=norms).tolist() == rewards.tolist()
