"""Training forward in the precision of a rollout: linear layers cast weights and activations, with straight-through gradients."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

from harness.config import PrecisionConfig
from harness.rollouts.architecture import FUSED, IN_ATTENTION
from harness.rollouts.linear import Arithmetic, EngineMatrix


def cast_linear_layers(model: PreTrainedModel, precision: PrecisionConfig) -> None:
    """Make every linear layer of a model's decoder compute as the embedded engine does in `precision`, in place.

        y = Q(x)·Q(W)ᵀ + b,    ∂L/∂x = ∂L/∂y·Q(W),    ∂L/∂W = (∂L/∂y)ᵀ·Q(x),    ∂L/∂b = Σ ∂L/∂y

    where Q casts to the precision's codes and back, and the derivative of Q is taken as 1. The sum over codes is computed as
    in the engine. Products and gradients are in fp32 at least. As in the engine, q, k and v are cast as one matrix, and gate
    and up as another; each expert of a mixture is cast by itself. Router, head, embedding, norms and attention are unchanged,
    and so are the names of the parameters. Source: the straight-through estimator, arXiv 1308.3432.
    """
    arithmetic = Arithmetic(precision)
    layers: Any = model.get_decoder().layers  # type: ignore[union-attr]  # any module, for all that transformers says
    for layer in layers:
        experts = getattr(layer.mlp, "experts", None)
        if experts is not None:
            experts.forward = _CastExperts(arithmetic, experts).forward
        for key in FUSED if experts is None else IN_ATTENTION:
            fused = _Fused(arithmetic, [layer.get_submodule(part) for part in FUSED[key]])
            for place, module in enumerate(fused.modules):
                module.forward = partial(fused.forward, place)  # type: ignore[method-assign]


class _CastExperts:
    """The experts of a layer, each with weights cast by itself. `forward` replaces transformers' `Qwen3MoeExperts.forward`."""

    def __init__(self, arithmetic: Arithmetic, experts: nn.Module):
        self.arithmetic, self.experts = arithmetic, experts

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Sum [N, hidden] of the outputs of each row's experts `top_k_index` [N, k], with the factors `top_k_weights` [N, k]."""
        experts: Any = self.experts
        outputs = torch.zeros_like(hidden_states)
        for number, (gate_up, down) in enumerate(zip(experts.gate_up_proj, experts.down_proj, strict=True)):
            rows, slots = torch.where(top_k_index == number)
            if not len(rows):
                continue
            gate, up = self._product(hidden_states[rows], gate_up).chunk(2, -1)
            y = self._product(experts.act_fn(gate) * up, down) * top_k_weights[rows, slots, None]
            outputs = outputs.index_add(0, rows, y.to(outputs.dtype))
        return outputs

    def _product(self, x: Tensor, weight: Tensor) -> Tensor:
        with torch.no_grad():
            matrix = self.arithmetic.weight(self.arithmetic.round(weight.float()))
        return _CastProduct.apply(x, weight, None, self.arithmetic, matrix)


class _Fused:
    """Linear layers whose weights are cast together as one matrix, such as q, k and v."""

    def __init__(self, arithmetic: Arithmetic, modules: list[nn.Linear]):
        self.arithmetic, self.modules = arithmetic, modules
        self._waiting: dict[int, EngineMatrix] = {}

    def forward(self, number: int, x: Tensor) -> Tensor:
        """Output [..., N] of linear layer `number` for input x [..., K]."""
        if number not in self._waiting:  # the first layer of this pass casts for all
            self._waiting = dict(enumerate(self._cast()))
        module, weight = self.modules[number], self._waiting.pop(number)
        y = _CastProduct.apply(x.flatten(0, -2), module.weight, module.bias, self.arithmetic, weight)
        return y.view(*x.shape[:-1], -1)

    @torch.no_grad()
    def _cast(self) -> list[EngineMatrix]:
        whole = self.arithmetic.weight(torch.cat([self.arithmetic.round(module.weight.float()) for module in self.modules]))
        sizes = [len(module.weight) for module in self.modules]
        codes = whole.codes.split(sizes, -1)
        by_column = whole.scale is not None and whole.scale.shape[-1] == whole.codes.shape[-1]
        scales = whole.scale.split(sizes, -1) if by_column else [whole.scale] * len(sizes)  # type: ignore[union-attr]
        return [EngineMatrix(*parts) for parts in zip(codes, scales, strict=True)]


class _CastProduct(torch.autograd.Function):
    """Product y [B, N] of x [B, K] and a cast weight, plus bias. Gradients go to x, the uncast weight [N, K] and the bias [N]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, arithmetic: Arithmetic, cast: EngineMatrix) -> Tensor:
        codes, scale = arithmetic.activation(arithmetic.round(x.float()))
        ctx.save_for_backward(codes, scale, cast.codes, cast.scale)
        ctx.dtypes = x.dtype, weight.dtype, None if bias is None else bias.dtype
        codes, scale, *of_weight = _widened(x.dtype, codes, scale, cast.codes, cast.scale, bias)
        return arithmetic.product(codes, scale, EngineMatrix(*of_weight)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_y: Tensor) -> tuple[Tensor | None, ...]:
        of_x, of_weight, of_bias = ctx.dtypes
        of_y, codes, scale, *cast = _widened(of_y.dtype, of_y, *ctx.saved_tensors)
        x, weight = Arithmetic.values(codes, scale), EngineMatrix(*cast).values()
        gradient_of_bias = None if of_bias is None else of_y.sum(0).to(of_bias)
        return (of_y @ weight.t()).to(of_x), (of_y.t() @ x).to(of_weight), gradient_of_bias, None, None


def _widened(dtype: torch.dtype, *parts: Tensor | None) -> list[Any]:
    """Convert tensors to `dtype`, or to fp32 if fp32 is wider; None stays None."""
    wide = torch.promote_types(dtype, torch.float32)
    return [None if part is None else part.to(wide) for part in parts]
