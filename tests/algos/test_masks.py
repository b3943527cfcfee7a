"""Masking by bits is torch.where, whatever stands off the mask."""

import pytest
import torch

from algos.masks import bits, only, outside

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
VALUES = [[1.5, torch.nan, -torch.inf, -0.0], [torch.inf, torch.nan, 0.0, -3.0]]
MASK = torch.tensor([[True, False, False, True], [True, True, False, False]])


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_gradient_are_those_of_where(dtype):
    values = torch.tensor(VALUES, dtype=dtype)
    grad = values.flip(0)  # NaN and infinities off the mask here too
    wanted = torch.where(MASK, values, 0.0)
    for mask in (MASK, bits(MASK, torch.float64), bits(MASK, dtype)):  # the bits for another dtype serve too
        given = values.clone().requires_grad_()
        found = only(given, mask)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(only(values, mask), wanted, rtol=0, atol=0, equal_nan=True)
        found.backward(grad)
        torch.testing.assert_close(given.grad, torch.where(MASK, grad, 0.0), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_outside_is_minus_infinity_off_the_mask(dtype):
    wanted = torch.tensor([[0.0, -torch.inf, -torch.inf, 0.0], [0.0, 0.0, -torch.inf, -torch.inf]], dtype=dtype)
    assert torch.equal(outside(MASK, dtype), wanted)


def test_any_strides():
    values = torch.arange(8.0).view(4, 2).T
    assert torch.equal(only(values, MASK), torch.where(MASK, values, 0.0))
    row = torch.ones(()).expand(2, 4)
    assert torch.equal(only(row, MASK.T.contiguous().T), MASK.float())
