"""Linear layers that sum in parts, as kernels of a GPU do by the size of the batch: for dumps scored in micro-batches."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.config import PrecisionConfig
from harness.rollouts.linear import Arithmetic, EngineMatrix


class PartialSums(Arithmetic):
    """Arithmetic of a precision without casts, whose linear layers sum their inputs in two or more `parts`.

    y = round(Σ_i round(Σ_{k in part i} x_k·W_k) + b), where the K inputs of a layer fall into parts. So may a GPU's kernels that
    split the reduction, which PyTorch lets BF16 kernels round part by part
    (torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction). Experts of a mixture sum in one part.
    """

    def __init__(self, precision: PrecisionConfig, parts: int):
        super().__init__(precision)
        assert self.weights is None and self.activations is None
        self.parts = parts

    def linear(self, x: Tensor, weight: EngineMatrix) -> Tensor:
        pieces = zip(x.tensor_split(self.parts, -1), weight.codes.tensor_split(self.parts), strict=True)
        y = torch.stack([self.round(own @ codes) for own, codes in pieces]).sum(0)
        return self.round(y if weight.bias is None else y + weight.bias)
