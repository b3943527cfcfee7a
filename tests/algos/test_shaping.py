"""Penalties on the reward, against numbers by hand. tests/oracles compares them with verl, SkyRL and TRL."""

import pytest
import torch

from algos.shaping import adapted, overlong_punishment


def test_the_punishment_grows_over_the_buffer():
    """L = 20, b = 4, penalty 2: 0 up to 16 tokens, then −2·(n − 16)/4, and −2 from 20 on."""
    lengths = torch.tensor([[1, 16, 17], [18, 20, 23]])
    punished = overlong_punishment(lengths, longest=20, buffer=4, penalty=2.0)
    assert punished.tolist() == [[0, 0, -0.5], [-1, -2, -2]]


@pytest.mark.parametrize(
    ("kl", "factor"),
    [
        (0.1, 1.0),  # at the target
        (0.11, 1 + 0.1 * 32 / 100),  # 10 % above it
        (5.0, 1 + 0.2 * 32 / 100),  # clipped at 20 %
        (0.0, 1 - 0.2 * 32 / 100),
    ],
)
def test_the_coefficient_follows_the_relative_error(kl, factor):
    assert adapted(0.5, kl, target=0.1, horizon=100, responses=32) == pytest.approx(0.5 * factor, rel=1e-12)


def test_a_penalty_never_becomes_a_reward():
    """1 - 0.2 * 600/100 = -0.2 would pay for KL; the coefficient is 0 instead."""
    assert adapted(0.5, 0.0, target=0.1, horizon=100, responses=600) == 0.0
