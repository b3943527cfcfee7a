"""The arithmetic of one precision: where a linear layer rounds, and what its weights and activations are cast to.

Values are held in fp32, and rounded to the compute dtype after each operation whose result a 16-bit kernel would store. This
gives what fp32 accumulation with a 16-bit output gives. On a CPU without 16-bit matrix units fp32 is several times faster
than native 16-bit tensors. A quantised linear layer multiplies codes, accumulates in fp32, applies both scales and rounds once
(`casts.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from torch import Tensor

from harness.config import PrecisionConfig
from harness.models import DTYPES
from harness.rollouts import casts

Cast = Callable[[Tensor], tuple[Tensor, Tensor | None]]
"""A cast: function from values to (codes, scale). The scale is None if the codes are the values."""


def _whole(x: Tensor) -> tuple[Tensor, None]:
    return x, None


WEIGHT_CASTS: dict[str | None, Cast] = {
    None: _whole,
    "fp8_tensor": partial(casts.quantize_fp8, dim=None),
    "fp8_channel": partial(casts.quantize_fp8, dim=-1),
    "fp8_block": partial(casts.quantize_fp8_block, rows=casts.FP8_BLOCK),
    "mxfp8": lambda weight: (casts.quantize_mxfp8(weight), None),
    "int8_channel": partial(casts.quantize_int8, dim=-1),
    "nvfp4": casts.quantize_nvfp4,
    "mxfp4": lambda weight: (casts.quantize_mxfp4(weight), None),
}
ACTIVATION_CASTS: dict[str | None, Cast] = {
    None: _whole,
    "fp8_token": partial(casts.quantize_fp8, dim=-1),
    "fp8_group": partial(casts.quantize_fp8_block, rows=1),
    "mxfp8": lambda x: (casts.quantize_mxfp8(x), None),
    "int8_token": partial(casts.quantize_int8, dim=-1),
    "nvfp4_token": partial(casts.quantize_nvfp4, dim=-1),
    "mxfp4": lambda x: (casts.quantize_mxfp4(x), None),
}
INT8_EXACT_WIDTH = 1040
"""Maximum width at which fp32 sums int8 products exactly, as a kernel's int32 does: 127² · 1040 < 2²⁴. Wider sums use fp64."""


class EngineMatrix(NamedTuple):
    """A weight matrix in the form by which the engine multiplies.

    codes: [K, N], for K inputs and N outputs. scale: one for all codes, [N] for the outputs, or [⌈K/128⌉, N] for blocks of
    inputs; None if the codes are the values. bias: [N]. adapter: a low-rank pair, [K, r] and [r, N] in the compute dtype, whose
    product is added; None for none.
    """

    codes: Tensor
    scale: Tensor | None
    bias: Tensor | None = None
    adapter: tuple[Tensor, Tensor] | None = None

    def values(self) -> Tensor:
        """Values of the matrix [K, N]: code · scale."""
        if self.scale is None:
            return self.codes
        blocks = self.scale.repeat_interleave(casts.FP8_BLOCK, 0)[: len(self.codes)] if self.scale.ndim == 2 else self.scale
        return self.codes * blocks


class Arithmetic:
    """Casts weights and inputs to one precision, and multiplies them, for the linear layers of the embedded engine."""

    def __init__(self, precision: PrecisionConfig):
        self.weights, self.activations = precision.weights, precision.activations
        self.compute = DTYPES[precision.compute]

    def round(self, x: Tensor) -> Tensor:
        """x (fp32) rounded to the compute dtype, held in fp32."""
        return casts.round_to(x, self.compute)

    def weight(self, weight: Tensor, bias: Tensor | None = None) -> EngineMatrix:
        """Cast a weight [N, K] to the precision's format of weights."""
        codes, scale = WEIGHT_CASTS[self.weights](weight)
        if self.weights == "fp8_block":
            assert scale is not None
            scale = scale.repeat_interleave(casts.FP8_BLOCK, 0)[: len(weight)].t().contiguous()
        elif scale is not None:
            scale = scale.flatten()
        return EngineMatrix(codes.t().contiguous(), scale, bias)

    def activation(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Cast inputs x [B, K] to the precision's format. Returns (codes, scale by row or by 128 values)."""
        return ACTIVATION_CASTS[self.activations](x)

    @staticmethod
    def values(codes: Tensor, scale: Tensor | None) -> Tensor:
        """Values code · scale, [B, K], of rows that `activation` has cast."""
        if scale is None:
            return codes
        return codes * (scale.repeat_interleave(casts.FP8_BLOCK, -1)[:, : codes.shape[-1]] if scale.shape[-1] > 1 else scale)

    def product(self, codes: Tensor, scale: Tensor | None, weight: EngineMatrix) -> Tensor:
        """Product [B, N] of a weight and rows that `activation` has cast, plus the bias, rounded once to the compute dtype."""
        if self.weights == "fp8_block":
            y = _sum_of_blocks(codes, scale, weight)
        elif self.activations == "int8_token" and codes.shape[-1] > INT8_EXACT_WIDTH:
            y = _scaled((codes.double() @ weight.codes.double()).float(), scale, weight.scale)
        else:
            y = _scaled(codes @ weight.codes, scale, weight.scale)
        return self.round(y if weight.bias is None else y.add_(weight.bias))

    def linear(self, x: Tensor, weight: EngineMatrix) -> Tensor:
        """A linear layer: cast rows x [B, K], multiply them by a weight and add its bias and its adapter's product, [B, N]."""
        y = self.product(*self.activation(x), weight)
        if weight.adapter is None:
            return y
        down, up = weight.adapter
        return self.round(y + self.round(self.round(x @ down) @ up))


def _scaled(y: Tensor, scale: Tensor | None, of_weight: Tensor | None) -> Tensor:
    if of_weight is None:
        return y
    return y.mul_(of_weight if scale is None else scale * of_weight)


def _sum_of_blocks(codes: Tensor, scale: Tensor | None, weight: EngineMatrix) -> Tensor:
    """Product y[b, n] = Σ_g (Σ_{k in g} x[b, k]·w[k, n])·s_x[b, g]·s_w[g, n] of codes x, w, scales s_x, s_w, blocks g of 128."""
    assert weight.scale is not None
    y = codes.new_zeros(len(codes), weight.codes.shape[1])
    blocks = zip(codes.split(casts.FP8_BLOCK, 1), weight.codes.split(casts.FP8_BLOCK), weight.scale, strict=True)
    for g, (x, w, of_weight) in enumerate(blocks):
        part = x @ w if scale is None else (x @ w).mul_(scale[:, g, None])
        y.add_(part.mul_(of_weight))
    return y
