"""Sums in parts, against BF16's own spacing."""

import torch

from experiments.faults.partial_sums import PartialSums
from harness.rollouts.linear import Arithmetic, EngineMatrix
from tests.harness.engines import precision

BF16 = precision("bf16")


def test_a_split_sum_rounds_each_part():
    """BF16 has 8 bits: 1 + 2⁻⁸ lies between 1 and 1 + 2⁻⁷, and rounds to the even 1. So do 1 and the second part's 2⁻⁸."""
    x, weight = torch.tensor([[1, 2**-8, 2**-8, 0]]), EngineMatrix(torch.ones(4, 1), None)
    assert Arithmetic(BF16).linear(x, weight).item() == 1 + 2**-7
    assert PartialSums(BF16, 2).linear(x, weight).item() == 1


def test_the_bias_is_added_once():
    x, weight = torch.ones(1, 4), EngineMatrix(torch.ones(4, 1), None, torch.tensor([0.5]))
    assert PartialSums(BF16, 4).linear(x, weight).item() == 4.5
