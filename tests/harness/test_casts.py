"""Each number format against an independent computation: exact rational arithmetic on the format's own list of values."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from harness.rollouts import casts

E2M1_VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
"""e2m1 from its definition: 2 exponent bits, bias 1, 1 mantissa bit, no infinity and no NaN."""


def e4m3_values() -> list[float]:
    """All non-negative finite values of e4m3fn from its definition: 4 exponent bits, bias 7, 3 mantissa bits, 1111.111 is NaN."""
    values = []
    for exponent in range(16):
        for mantissa in range(8):
            if (exponent, mantissa) != (15, 7):
                values.append(mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    return values


def nearest(x: float, values: list[float]) -> float:
    """The nearest value in exact arithmetic; of two equally near the one at an even place, whose last mantissa bit is 0."""
    distances = [abs(Fraction(abs(float(x))) - Fraction(v)) for v in values]
    best = min(distances)
    places = [i for i, d in enumerate(distances) if d == best]
    return float(np.copysign(values[next((i for i in places if i % 2 == 0), places[0])], x))


def awkward(values: list[float], seed: int) -> np.ndarray:
    """Every value, every midpoint, both with neighbours one fp32 step away, and random numbers over all magnitudes."""
    points = np.array(values, dtype=np.float32)
    middles = ((points[1:].astype(np.float64) + points[:-1]) / 2).astype(np.float32)
    rng = np.random.default_rng(seed)
    spread = (rng.standard_normal(300) * np.exp(rng.normal(size=300) * 4)).astype(np.float32)
    x = np.concatenate([points, middles, np.nextafter(middles, np.float32(np.inf)), np.nextafter(middles, np.float32(0)), spread])
    return np.concatenate([x, -x])


def test_e4m3_is_the_nearest_value_in_exact_arithmetic():
    values = e4m3_values()
    assert len(values) == 127 and max(values) == 448.0
    x = awkward(values, 0)
    assert casts.e4m3(torch.from_numpy(x)).tolist() == [nearest(v, values) for v in x]


def test_e4m3_equals_torchs_own_cast_on_every_bf16_number():
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    x = bits.view(torch.bfloat16).float()
    x = x[~x.isnan()]
    expected = x.clamp(-448, 448).to(torch.float8_e4m3fn).float()  # the clamp: older builds turn an overflow into NaN
    assert torch.equal(casts.e4m3(x), expected)


def test_e4m3_keeps_nan_and_saturates_infinity():
    out = casts.e4m3(torch.tensor([float("nan"), float("inf"), -float("inf")]))
    assert out[0].isnan() and out[1:].tolist() == [448.0, -448.0]


def test_e2m1_is_the_nearest_value_in_exact_arithmetic():
    x = awkward(E2M1_VALUES, 1)
    assert casts.e2m1(torch.from_numpy(x)).tolist() == [nearest(v, E2M1_VALUES) for v in x]


@pytest.mark.parametrize("dim", [None, -1, 0])
def test_fp8_codes_are_x_over_its_scale(dim):
    x = torch.randn(24, 40, generator=torch.Generator().manual_seed(0))
    codes, scale = casts.quantize_fp8(x, dim)
    amax = np.abs(x.numpy()).max() if dim is None else np.abs(x.numpy()).max(axis=dim, keepdims=True)
    assert np.array_equal(scale.numpy(), (amax / np.float32(448)).astype(np.float32))
    expected = [nearest(v, e4m3_values()) for v in (x.numpy() / scale.numpy()).ravel()]
    assert codes.flatten().tolist() == expected


def test_int8_codes_by_numpy():
    x = torch.randn(24, 40, generator=torch.Generator().manual_seed(0))
    codes, scale = casts.quantize_int8(x, -1)
    assert np.array_equal(codes.numpy(), np.rint(x.numpy() / scale.numpy()))  # rint: ties to even
    assert codes.abs().amax(-1).eq(127).all()


def test_nvfp4_by_blocks():
    """Every block by hand: its scale is e4m3 of max/6 relative to the tensor's scale, its codes are e2m1."""
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    product, scale = casts.quantize_nvfp4(x)
    assert float(scale) == np.float32(x.abs().max().item()) / np.float32(6 * 448)
    for row, out in zip(x.numpy(), product.numpy(), strict=True):
        for at in range(0, 64, 16):
            block = row[at : at + 16]
            block_scale = np.float32(nearest(np.abs(block).max() / np.float32(6) / np.float32(scale), e4m3_values()))
            codes = [nearest(v, E2M1_VALUES) for v in block / (block_scale * np.float32(scale))]
            assert np.array_equal(out[at : at + 16], np.array(codes, dtype=np.float32) * block_scale)


def test_nvfp4_per_token_is_nvfp4_of_each_row_by_itself():
    """Rows of magnitudes from 1e-3 to 1e3: each has the codes and the scale that it would have as a tensor of its own."""
    x = torch.randn(7, 48, generator=torch.Generator().manual_seed(0)) * 10.0 ** torch.arange(-3, 4)[:, None]
    product, scale = casts.quantize_nvfp4(x, -1)
    assert scale.shape == (7, 1)
    for row, out, s in zip(x, product, scale, strict=True):
        alone, scale_alone = casts.quantize_nvfp4(row[None])
        assert torch.equal(alone[0], out) and float(scale_alone) == float(s)
    # Of a block the scale is off max/6 by at most 2⁻⁴ (e4m3), and a code is off by at most half of the widest spacing, 2:
    # together at most max/6 · (1 + 2⁻⁴) and, where the largest value saturates, max·2⁻⁴ more.
    blocks = x.unflatten(-1, (-1, 16))
    off = ((product * scale).unflatten(-1, (-1, 16)) - blocks).abs().amax(-1)
    assert (off <= blocks.abs().amax(-1) * (17 / 96 + 1 / 16)).all() and off.max() > 0


@pytest.mark.parametrize("shape", [(16, 32), (1, 16)])
def test_casts_are_idempotent(shape):
    """Quantising what was dequantised gives the same codes: q(q(x)) = q(x)."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3)) * 0.05
    for quantize in (
        lambda v: casts.quantize_fp8(v, None),
        lambda v: casts.quantize_fp8(v, -1),
        lambda v: casts.quantize_int8(v, -1),
    ):
        codes, scale = quantize(x)
        assert torch.equal(quantize(codes * scale)[0], codes)
    product, scale = casts.quantize_nvfp4(x)
    again, scale_again = casts.quantize_nvfp4(product * scale)
    assert torch.equal(again, product) and torch.equal(scale_again, scale)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        once = casts.round_to(x, dtype)
        assert torch.equal(casts.round_to(once, dtype), once)
    assert torch.equal(casts.e4m3(casts.e4m3(x)), casts.e4m3(x))
    assert torch.equal(casts.e2m1(casts.e2m1(x)), casts.e2m1(x))


def test_zeros_have_codes_zero():
    for codes, scale in (casts.quantize_fp8(torch.zeros(2, 16), -1), casts.quantize_int8(torch.zeros(2, 16), -1)):
        assert codes.eq(0).all() and scale.isfinite().all()
    assert casts.quantize_nvfp4(torch.zeros(2, 16))[0].eq(0).all()


def test_bf16_rounding_by_its_bits():
    """Nearest even on the upper 16 bits of the fp32 pattern, as integers."""
    x = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    bits = x.view(np.uint32)
    expected = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)
    assert np.array_equal(casts.round_to(torch.from_numpy(x), torch.bfloat16).numpy(), expected)


def test_fp16_rounding_by_numpy():
    x = (np.random.default_rng(0).standard_normal(5000) * 1e-3).astype(np.float32)
    assert np.array_equal(casts.round_to(torch.from_numpy(x), torch.float16).numpy(), x.astype(np.float16).astype(np.float32))


def test_nvfp4_names_a_width_it_cannot_take():
    with pytest.raises(ValueError, match="multiple of 16"):
        casts.quantize_nvfp4(torch.zeros(2, 24))


def test_e5m2_is_bf16_like_with_two_mantissa_bits():
    """Around 1 its spacing is 1/4, ties to even; 57344 = 1.75 · 2¹⁵ is its largest value."""
    x = torch.tensor([1.1, 1.125, 1.375, 1.2, -1.9, 1e6, -torch.inf, torch.nan])
    assert casts.e5m2(x).tolist()[:-1] == [1.0, 1.0, 1.5, 1.25, -2.0, 57344.0, -57344.0]
    assert casts.e5m2(x)[-1].isnan()
