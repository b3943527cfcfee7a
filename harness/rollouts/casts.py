"""Number formats of inference engines, exact in value: quantise to codes and a scale, both held in fp32.

A value x is represented as code · scale. `quantize_*` return (codes, scale), with codes that the format represents exactly.
For MX formats and INT4 they return the values code · scale instead. NVFP4's codes include the scale of their block. The
product of two codes is exact in fp32. So a matrix product of codes accumulated in fp32, times both scales, is what the hardware
computes up to the order of the sum.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

E4M3_MAX = 448.0
E5M2_MAX = 57344.0
E2M1_MAX = 6.0
NVFP4_BLOCK = 16
MX_BLOCK = 32
FP8_BLOCK = 128


def round_to(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x (fp32) rounded to the nearest value of `dtype`, ties to even, held in fp32."""
    return x if dtype == torch.float32 else x.to(dtype).float()


def e4m3(x: Tensor) -> Tensor:
    """x (fp32) rounded to float8_e4m3fn, ties to even, saturated at ±448, held in fp32; NaN stays NaN.

    For 2ᵉ ≤ |x| < 2ᵉ⁺¹ the spacing of e4m3 is 2ᵉ⁻³, that of its subnormals 2⁻⁹. The fp32 number 1.5·2ᵉ⁺²⁰ has that spacing
    too, so adding it rounds x. Within ±448 the result equals `x.to(torch.float8_e4m3fn)` (a test compares all of bf16 and a
    sample of fp32). On a CPU this is five times faster than torch's cast, which is scalar code there.
    """
    x = x.clamp(-E4M3_MAX, E4M3_MAX)
    power = (x.view(torch.int32) & 0x7F800000).view(torch.float32).clamp_(min=2.0**-6)
    return x.add(power, alpha=1.5 * 2**20).sub_(power, alpha=1.5 * 2**20)


def e5m2(x: Tensor) -> Tensor:
    """x (fp32) rounded to float8_e5m2, ties to even, saturated at ±57344, held in fp32; NaN stays NaN."""
    return round_to(x.clamp(-E5M2_MAX, E5M2_MAX), torch.float8_e5m2)


def quantize_fp8(x: Tensor, dim: int | None) -> tuple[Tensor, Tensor]:
    """Return (e4m3 codes, scale) with scale = max|x|/448 over the whole tensor (`dim=None`), or along `dim`, which is kept."""
    scale = _amax(x, dim) / E4M3_MAX
    return e4m3(x / scale), scale


def quantize_fp8_block(x: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Return (e4m3 codes [N, K], scale = max|x|/448 of each block of `rows` x 128 values, [⌈N/rows⌉, ⌈K/128⌉]) for x [N, K].

    DeepSeek-V3 (arXiv 2412.19437, section 3.3.2) has rows=128 for weights, rows=1 for the activations of a token. The last
    block of a width that 128 does not divide is smaller, as in DeepSeek's own kernels.
    """
    n, k = x.shape
    padded = F.pad(x, (0, -k % FP8_BLOCK, 0, -n % rows))
    blocks = padded.view(padded.shape[0] // rows, rows, -1, FP8_BLOCK)
    scale = _amax(_amax(blocks, 1), 3) / E4M3_MAX
    return e4m3(blocks / scale).view_as(padded)[:n, :k], scale[:, 0, :, 0]


def quantize_mxfp8(x: Tensor) -> Tensor:
    """Return the values code · scale of x in MXFP8: e4m3 codes in blocks of 32 along the last dimension, an e8m0 scale per
    block.

    scale = 2^(⌊log₂ max|x|⌋ − 8), at least 2⁻¹²⁷; code = e4m3(x/scale), saturated: OCP Microscaling Formats 1.0, section 6.3.
    A code times a power of two is exact in fp32, and so is the product of two of these values. Raises ValueError unless 32
    divides the last dimension.
    """
    return _mx(x, "mxfp8", e4m3, 8)


def quantize_mxfp4(x: Tensor) -> Tensor:
    """Return the values code · scale of x in MXFP4: e2m1 codes in blocks of 32 along the last dimension, an e8m0 scale per block.

    scale = 2^(⌊log₂ max|x|⌋ − 2), at least 2⁻¹²⁷; code = e2m1(x/scale), saturated at ±6: OCP Microscaling Formats 1.0, section
    6.3. The values are exact in fp32. Raises ValueError unless 32 divides the last dimension.
    """
    return _mx(x, "mxfp4", e2m1, 2)


def quantize_int8(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return (symmetric int8 codes in −127..127, scale = max|x|/127 along `dim`, which is kept). Ties round to even."""
    scale = _amax(x, dim) / 127.0
    return (x / scale).round().clamp(-127, 127), scale


def quantize_nvfp4(x: Tensor, dim: int | None = None) -> tuple[Tensor, Tensor]:
    """Return (code · block scale, scale) of x in NVFP4: e2m1 codes in blocks of 16 along the last dimension.

    Each block has an e4m3 scale. Above the block scales is one fp32 scale: of the whole tensor (`dim=None`), as for weights,
    or of each row (`dim=-1`), as for a token's activations. scale = max|x|/(6·448); block scale = e4m3(block max/6/scale);
    code = e2m1(x/(block scale·scale)), ties to the even code. code · block scale is exact in fp32. Raises ValueError unless 16
    divides the last dimension.
    """
    blocks = _blocks(x, "nvfp4", NVFP4_BLOCK)
    scale = _amax(x, dim) / (E2M1_MAX * E4M3_MAX)
    of_block = scale if dim is None else scale[..., None]
    block_scale = e4m3(blocks.abs().amax(-1, keepdim=True) / E2M1_MAX / of_block)
    block_scale = torch.where(block_scale > 0, block_scale, 1.0)
    return (e2m1(blocks / (block_scale * of_block)) * block_scale).flatten(-2), scale


def _mx(x: Tensor, name: str, element: Callable[[Tensor], Tensor], largest: int) -> Tensor:
    """Values code · scale of x in the MX format `name`. element: rounds to codes. 2^largest: largest power of two of a code."""
    blocks = _blocks(x, name, MX_BLOCK)
    power = (blocks.abs().amax(-1, keepdim=True).view(torch.int32) & 0x7F800000).view(torch.float32)  # 2^⌊log₂ max|x|⌋
    scale = (power * 2.0**-largest).clamp(2.0**-127, 2.0**127)
    return (element(blocks / scale) * scale).flatten(-2)


def _blocks(x: Tensor, name: str, size: int) -> Tensor:
    if x.shape[-1] % size:
        raise ValueError(f"{name} needs rows of a multiple of {size} values, not {x.shape[-1]}; choose another model width")
    return x.unflatten(-1, (-1, size))


def e2m1(x: Tensor) -> Tensor:
    """x rounded to {0, ½, 1, 1½, 2, 3, 4, 6} with its sign, saturated at ±6, ties to the even mantissa."""
    x = x.clamp(-E2M1_MAX, E2M1_MAX)
    # As in `e4m3`: with 2ᵉ ≤ |x| < 2ᵉ⁺¹ the spacing is 2ᵉ⁻¹, and ½ below 1.
    power = (x.view(torch.int32) & 0x7F800000).view(torch.float32).clamp_(min=1.0)
    return x.add(power, alpha=1.5 * 2**22).sub_(power, alpha=1.5 * 2**22)


def _amax(x: Tensor, dim: int | None) -> Tensor:
    """Largest |x| of the whole tensor (dim=None) or along `dim`, at least a small normal number, so that zeros get code 0."""
    amax = x.abs().amax() if dim is None else x.abs().amax(dim, keepdim=True)
    return amax.clamp(min=torch.finfo(torch.float32).tiny * 2**10)
