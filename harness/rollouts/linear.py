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

WEIGHTS = (None, "fp8_tensor", "fp8_channel", "int8_channel", "nvfp4")
ACTIVATIONS = (None, "fp8_token", "int8_token", "nvfp4_token")
INT8_EXACT_WIDTH = 1040
"""127² · 1040 < 2²⁴: up to this width a sum of int8 products is exact in fp32, as it is in a kernel's int32; beyond, fp64."""


class Weight(NamedTuple):
    """A matrix as an engine multiplies by it: codes [K, N], scale of the output (scalar or [N]), bias [N]."""

    codes: Tensor
    scale: Tensor | None
    bias: Tensor | None = None


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
            case "int8_channel":
                codes, scale = casts.quantize_int8(weight, -1)
            case "nvfp4":
                codes, scale = casts.quantize_nvfp4(weight)
        return Weight(codes.t().contiguous(), None if scale is None else scale.flatten(), bias)

    def activation(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Rows x [B, K] in the precision's format: codes, and a scale for each row."""
        match self.activations:
            case "fp8_token":
                return casts.quantize_fp8(x, -1)
            case "int8_token":
                return casts.quantize_int8(x, -1)
            case "nvfp4_token":
                return casts.quantize_nvfp4(x, -1)
            case _:
                return x, None

    def product(self, codes: Tensor, scale: Tensor | None, weight: Weight) -> Tensor:
        """What `activation` gave, times a weight: [B, N], rounded once."""
        if self.activations == "int8_token" and codes.shape[-1] > INT8_EXACT_WIDTH:
            y = (codes.double() @ weight.codes.double()).float()
        else:
            y = codes @ weight.codes
        if scale is not None and weight.scale is not None:
            y = y.mul_(scale * weight.scale)
        elif weight.scale is not None:
            y = y.mul_(weight.scale)
        return self.round(y if weight.bias is None else y.add_(weight.bias))

    def linear(self, x: Tensor, weight: Weight) -> Tensor:
        """x [B, K] times a weight."""
        return self.product(*self.activation(x), weight)
