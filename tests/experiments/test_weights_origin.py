"""The grid of 4-bit weights, and what lies on it."""

import pytest
import torch

from experiments.weights_origin import dither, grid, matrices, rounding_error
from harness.compose import compose
from harness.config import parse
from harness.rollouts.linear import Arithmetic


class Net(torch.nn.Module):
    """One matrix [4, 64] whose blocks of 32 have the steps 1/15 and 2/15."""

    def __init__(self):
        super().__init__()
        codes = torch.arange(64).remainder(16).repeat(4, 1).float()
        self.up_proj = torch.nn.Linear(64, 4)
        self.up_proj.weight.data = 0.25 + codes * torch.tensor([1 / 15, 2 / 15]).repeat_interleave(32)


def test_weights_of_a_4_bit_file_lie_on_their_grid_and_moved_ones_are_uniform():
    net = Net()
    (weight,) = matrices(net).values()
    found = grid(weight)
    assert found.step[0, [0, 31, 32, 63]].tolist() == pytest.approx([1 / 15, 1 / 15, 2 / 15, 2 / 15])
    assert found.distance(weight) < 1e-5
    with torch.no_grad():
        dither(net)
    assert found.distance(weight) == pytest.approx(12**-0.5, rel=0.1)  # 256 uniform places


def test_a_rounding_error_is_that_of_the_cast():
    net = Net()
    int8 = Arithmetic(parse(compose("rollout/precision=int8")).rollout.precision)
    net.up_proj.weight.data = torch.tensor([[127.0, 0.5], [0.0, 254.0]])  # codes 127 and 0 (half to even), 0 and 127
    assert rounding_error(net, int8) == pytest.approx(0.5 / (127**2 + 0.25 + 254**2) ** 0.5)
