"""The arithmetic of one precision: where a linear layer rounds, and what its weights and activations are cast to.

Values are held in fp32 and rounded to the compute dtype after each operation that a 16-bit kernel would store: that is what
fp32 accumulation with a 16-bit output gives, and on a CPU without 16-bit matrix units it is several times faster than native
16-bit tensors. A quantised linear layer multiplies codes, accumulates in fp32, applies both scales and rounds once (`casts.py`).
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from harness.config import PrecisionConfig
from harness.models import DTYPES
from harness.rollouts import casts

WEIGHTS = (None, "fp8_tensor", "fp8_channel", "fp8_block", "mxfp8", "int8_channel", "nvfp4")
ACTIVATIONS = (None, "fp8_token", "fp8_group", "mxfp8", "int8_token", "nvfp4_token")
INT8_EXACT_WIDTH = 1040
"""127² · 1040 < 2²⁴: up to this width a sum of int8 products is exact in fp32, as it is in a kernel's int32; beyond, fp64."""


class Weight(NamedTuple):
    """A matrix as an engine multiplies by it: codes [K, N], scale of the output (scalar, [N], or [⌈K/128⌉, N]), bias [N]."""

    codes: Tensor
    scale: Tensor | None
    bias: Tensor | None = None

    def values(self) -> Tensor:
        """code · scale, [K, N]."""
        if self.scale is None:
            return self.codes
        blocks = self.scale.repeat_interleave(casts.FP8_BLOCK, 0)[: len(self.codes)] if self.scale.ndim == 2 else self.scale
        return self.codes * blocks


class Arithmetic:
    """What one precision computes."""

    def __init__(self, precision: PrecisionConfig):
        self.weights, self.activations = precision.weights, precision.activations
        self.compute = DTYPES[precision.compute]

    def round(self, x: Tensor) -> Tensor:
        """x (fp32) rounded to the compute dtype, held in fp32."""
        return casts.round_to(x, self.compute)

    def weight(self, weight: Tensor, bias: Tensor | None = None) -> Weight:
        """A weight [N, K] in the precision's format."""
        match self.weights:
            case None:
                codes, scale = weight, None
            case "fp8_tensor":
                codes, scale = casts.quantize_fp8(weight, None)
            case "fp8_channel":
                codes, scale = casts.quantize_fp8(weight, -1)
            case "fp8_block":
                codes, scale = casts.quantize_fp8_block(weight, casts.FP8_BLOCK)
                scale = scale.repeat_interleave(casts.FP8_BLOCK, 0)[: len(weight)]
                return Weight(codes.t().contiguous(), scale.t().contiguous(), bias)
            case "mxfp8":
                codes, scale = casts.quantize_mxfp8(weight), None
            case "int8_channel":
                codes, scale = casts.quantize_int8(weight, -1)
            case "nvfp4":
                codes, scale = casts.quantize_nvfp4(weight)
        return Weight(codes.t().contiguous(), None if scale is None else scale.flatten(), bias)

    def activation(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Rows x [B, K] in the precision's format: codes, and a scale for each row, or for each 128 values of a row."""
        match self.activations:
            case "fp8_token":
                return casts.quantize_fp8(x, -1)
            case "fp8_group":
                return casts.quantize_fp8_block(x, 1)
            case "mxfp8":
                return casts.quantize_mxfp8(x), None
            case "int8_token":
                return casts.quantize_int8(x, -1)
            case "nvfp4_token":
                return casts.quantize_nvfp4(x, -1)
            case _:
                return x, None

    @staticmethod
    def values(codes: Tensor, scale: Tensor | None) -> Tensor:
        """code · scale of what `activation` gave, [B, K]."""
        if scale is None:
            return codes
        return codes * (scale.repeat_interleave(casts.FP8_BLOCK, -1)[:, : codes.shape[-1]] if scale.shape[-1] > 1 else scale)

    def product(self, codes: Tensor, scale: Tensor | None, weight: Weight) -> Tensor:
        """What `activation` gave, times a weight: [B, N], rounded once."""
        if self.weights == "fp8_block":
            y = _sum_of_blocks(codes, scale, weight)
        elif self.activations == "int8_token" and codes.shape[-1] > INT8_EXACT_WIDTH:
            y = _scaled((codes.double() @ weight.codes.double()).float(), scale, weight.scale)
        else:
            y = _scaled(codes @ weight.codes, scale, weight.scale)
        return self.round(y if weight.bias is None else y.add_(weight.bias))

    def linear(self, x: Tensor, weight: Weight) -> Tensor:
        """x [B, K] times a weight."""
        return self.product(*self.activation(x), weight)


def _scaled(y: Tensor, scale: Tensor | None, of_weight: Tensor | None) -> Tensor:
    if of_weight is None:
        return y
    return y.mul_(of_weight if scale is None else scale * of_weight)


def _sum_of_blocks(codes: Tensor, scale: Tensor | None, weight: Weight) -> Tensor:
    """y[b, n] = Σ_g (Σ_{k in g} x[b, k]·w[k, n]) · s_x[b, g] · s_w[g, n], added in fp32, g the blocks of 128 along K."""
    assert weight.scale is not None
    y = codes.new_zeros(len(codes), weight.codes.shape[1])
    blocks = zip(codes.split(casts.FP8_BLOCK, 1), weight.codes.split(casts.FP8_BLOCK), weight.scale, strict=True)
    for g, (x, w, of_weight) in enumerate(blocks):
        part = x @ w if scale is None else (x @ w).mul_(scale[:, g, None])
        y.add_(part.mul_(of_weight))
    return y
