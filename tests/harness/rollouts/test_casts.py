"""Each number format against an independent computation: exact rational arithmetic on the format's own list of values."""

import math
from bisect import bisect
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
import torch

from harness.config import PrecisionConfig
from harness.rollouts import casts
from harness.rollouts.linear import Arithmetic

E2M1_VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
"""e2m1 from its definition: 2 exponent bits, bias 1, 1 mantissa bit, no infinity and no NaN."""


@cache
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
    at = bisect(values, abs(float(x)))
    distances = {i: abs(Fraction(abs(float(x))) - Fraction(values[i])) for i in (at - 1, at) if 0 <= i < len(values)}
    places = [i for i, d in distances.items() if d == min(distances.values())]
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


def by_blocks(x: np.ndarray, rows: int) -> list[list[Fraction]]:
    """code · scale of fp8_block in rational arithmetic, each block by itself."""
    out = [[Fraction(0)] * x.shape[1] for _ in x]
    for top in range(0, x.shape[0], rows):
        for left in range(0, x.shape[1], 128):
            block = x[top : top + rows, left : left + 128]
            scale = np.abs(block).max() / np.float32(448)
            for (i, j), value in np.ndenumerate(block):
                out[top + i][left + j] = Fraction(nearest(value / scale, e4m3_values())) * Fraction(float(scale))
    return out


def test_fp8_blocks_by_hand():
    """A token of 130 values: the first 128 have amax 448, so scale 1; the last two amax 896, so scale 2 and codes 448 and 1.5.

    A matrix of 129 x 2: the last row is a block of its own. Its amax is 56, so its scale 1/8 and its codes 448 and 24.
    """
    token = torch.zeros(1, 130)
    token[0, 0], token[0, 5], token[0, 128:] = -448.0, 17.0, torch.tensor([896.0, 3.0])
    codes, scale = casts.quantize_fp8_block(token, 1)
    assert scale.tolist() == [[1.0, 2.0]]
    assert (codes[0, 0], codes[0, 5], *codes[0, 128:]) == (-448, 16, 448, 1.5)  # 17 lies midway of 16 and 18
    matrix = torch.zeros(129, 2)
    matrix[3], matrix[128] = torch.tensor([448.0, 1.0]), torch.tensor([56.0, 3.0])
    codes, scale = casts.quantize_fp8_block(matrix, 128)
    assert scale.tolist() == [[1.0], [0.125]]
    assert codes[3].tolist() == [448, 1] and codes[128].tolist() == [448, 24] and codes.count_nonzero() == 4


@pytest.mark.parametrize(("rows", "shape"), [(1, (3, 300)), (128, (130, 132))])
def test_fp8_blocks_in_exact_arithmetic(rows, shape):
    """Blocks of very different magnitude, the last ones cut short by the width."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 10.0 ** torch.arange(shape[1]).div(50).floor()
    codes, scale = casts.quantize_fp8_block(x, rows)
    assert scale.shape == (-(-shape[0] // rows), -(-shape[1] // 128))
    spread = scale.repeat_interleave(rows, 0).repeat_interleave(128, 1)[: shape[0], : shape[1]]
    pairs = zip(codes.tolist(), spread.tolist(), strict=True)
    ours = [[Fraction(c) * Fraction(s) for c, s in zip(*pair, strict=True)] for pair in pairs]
    assert ours == by_blocks(x.numpy(), rows)


def arithmetic(weights: str | None, activations: str | None) -> Arithmetic:
    return Arithmetic(PrecisionConfig(name="x", compute="fp32", weights=weights, activations=activations))


@pytest.mark.parametrize("activations", ["fp8_group", None])
def test_fp8_block_product_in_exact_arithmetic(activations):
    """y = Σ_g s_x·s_w·Σ_k codes. In fp32 a sum of K products and G blocks is off by at most (K + G)·2⁻²⁴·Σ |terms|.

    Within a block fp64 is exact: codes have 4 bits within 2¹⁸, the 16-bit values 8 within 2¹⁰, and there are 2⁷ products.
    """
    generator = torch.Generator().manual_seed(1)
    x = casts.round_to(torch.randn(2, 260, generator=generator) * torch.logspace(-1, 1, 260), torch.bfloat16)
    w = torch.randn(131, 260, generator=generator) * torch.logspace(1, -1, 260)
    made = arithmetic("fp8_block", activations)
    ours = made.linear(x, made.weight(w))
    codes, scale = casts.quantize_fp8_block(x, 1) if activations else (x, torch.ones(2, 3))
    of_weight, by = casts.quantize_fp8_block(w, 128)
    assert by.shape == (2, 3)
    for b, n in np.ndindex(2, 131):
        terms = codes[b].double() * of_weight[n].double()
        sums = [(float(part.sum()), float(part.abs().sum())) for part in terms.split(128)]
        scales = [Fraction(float(scale[b, g])) * Fraction(float(by[n // 128, g])) for g in range(3)]
        exact = sum(Fraction(value) * s for (value, _), s in zip(sums, scales, strict=True))
        size = sum(Fraction(total) * s for (_, total), s in zip(sums, scales, strict=True))
        assert abs(Fraction(float(ours[b, n])) - exact) <= 263 * size / 2**24


def test_every_code_of_mxfp8_at_every_scale_is_its_own_value():
    """e8m0 has the scales 2⁻¹²⁷ to 2¹²⁷; fp32 holds 448 times those up to 2¹¹⁹. Beside 256·scale every code keeps its value."""
    codes = torch.tensor([sign * v for v in e4m3_values() for sign in (1, -1)])
    codes = torch.nn.functional.pad(codes, (0, -len(codes) % 31))  # the 32nd of each block is 256, which names the scale
    blocks = torch.cat([codes.view(-1, 31), torch.full((len(codes) // 31, 1), 256.0)], 1)
    for power in range(-127, 120):
        x = blocks * 2.0**power  # exact: the least is 2⁻¹³⁶
        assert torch.equal(casts.quantize_mxfp8(x.flatten()[None]), x.flatten()[None])


def test_mxfp8_by_hand():
    """max 500: ⌊log₂ 500⌋ = 8, scale 1, and 500 saturates at 448. max 1000: scale 2; 1000 → 896, 33 → 2·16 (midway, to even).
    max 2⁻¹³⁰: scale 2⁻¹²⁷, the least; 2⁻¹³⁰ is its code 1/8. 0 stays 0."""
    x = torch.zeros(4, 32)
    x[0, :3], x[1, :3], x[2, 0] = torch.tensor([500.0, -17.0, 3.0]), torch.tensor([-1000.0, 33.0, 7.0]), 2.0**-130
    out = casts.quantize_mxfp8(x)
    assert out[0, :3].tolist() == [448, -16, 3] and out[1, :3].tolist() == [-896, 32, 7]
    assert out[2, 0] == 2.0**-130 and out[3].count_nonzero() == 0 and out.count_nonzero() == 7


def test_mxfp8_in_exact_arithmetic():
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(2)) * 10.0 ** torch.arange(-20, 20, 5)[:, None]
    for block, out in zip(x.view(-1, 32).tolist(), casts.quantize_mxfp8(x).view(-1, 32).tolist(), strict=True):
        scale = Fraction(2) ** (math.frexp(max(map(abs, block)))[1] - 1 - 8)
        assert [Fraction(v) for v in out] == [Fraction(nearest(float(Fraction(v) / scale), e4m3_values())) * scale for v in block]


def test_a_product_in_mxfp8_is_exact_where_fp32_holds_the_sum():
    """Codes of a few bits and scales within 2³: every partial sum is a multiple of 2⁻¹² below 2¹², which fp32 holds."""
    generator = torch.Generator().manual_seed(3)
    codes = (torch.randint(-8, 9, (n, 64), generator=generator) for n in (4, 5))
    x, w = (part * 2.0 ** torch.randint(-3, 1, (len(part), 1), generator=generator) for part in codes)
    made = arithmetic("mxfp8", "mxfp8")
    assert torch.equal(casts.quantize_mxfp8(x), x) and torch.equal(made.linear(x, made.weight(w)), x @ w.t())
    off = made.linear(x + 0.3, made.weight(w))  # 8.3 needs more than the four bits of a code
    expected = (casts.quantize_mxfp8(x + 0.3).double() @ w.t().double()).float()
    assert torch.equal(off, expected) and not torch.equal(off, (x + 0.3) @ w.t())


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
    codes, scale = casts.quantize_fp8_block(x, 1)
    assert torch.equal(casts.quantize_fp8_block(codes * scale, 1)[0], codes)
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
    codes, scale = casts.quantize_fp8_block(torch.zeros(2, 16), 128)
    assert codes.eq(0).all() and scale.isfinite().all()


def test_bf16_rounding_by_its_bits():
    """Nearest even on the upper 16 bits of the fp32 pattern, as integers."""
    x = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    bits = x.view(np.uint32)
    expected = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)
    assert np.array_equal(casts.round_to(torch.from_numpy(x), torch.bfloat16).numpy(), expected)


def test_fp16_rounding_by_numpy():
    x = (np.random.default_rng(0).standard_normal(5000) * 1e-3).astype(np.float32)
    assert np.array_equal(casts.round_to(torch.from_numpy(x), torch.float16).numpy(), x.astype(np.float16).astype(np.float32))


def test_nvfp4_and_mxfp8_name_a_width_that_they_cannot_take():
    with pytest.raises(ValueError, match="multiple of 16"):
        casts.quantize_nvfp4(torch.zeros(2, 24))
    with pytest.raises(ValueError, match="multiple of 32"):
        casts.quantize_mxfp8(torch.zeros(2, 48))


def test_e5m2_is_bf16_like_with_two_mantissa_bits():
    """Around 1 its spacing is 1/4, ties to even; 57344 = 1.75 · 2¹⁵ is its largest value."""
    x = torch.tensor([1.1, 1.125, 1.375, 1.2, -1.9, 1e6, -torch.inf, torch.nan])
    assert casts.e5m2(x).tolist()[:-1] == [1.0, 1.0, 1.5, 1.25, -2.0, 57344.0, -57344.0]
    assert casts.e5m2(x)[-1].isnan()


def test_mxfp4_in_exact_arithmetic():
    """scale = 2^(⌊log₂ max⌋ − 2), so the largest value has a code of 4 to 6, where 7 and above would saturate at 6."""
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(2)) * 10.0 ** torch.arange(-20, 20, 5)[:, None]
    saturated = 0
    for block, out in zip(x.view(-1, 32).tolist(), casts.quantize_mxfp4(x).view(-1, 32).tolist(), strict=True):
        scale = Fraction(2) ** (math.frexp(max(map(abs, block)))[1] - 1 - 2)
        assert [Fraction(v) for v in out] == [Fraction(nearest(float(Fraction(v) / scale), E2M1_VALUES)) * scale for v in block]
        saturated += max(map(abs, block)) > 7 * scale
    assert saturated > 0
