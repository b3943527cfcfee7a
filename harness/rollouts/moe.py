"""The mixture-of-experts block of the embedded engine: a router picks k of E small MLPs for each token.

With the router W_r, p = softmax(W_r·x) and S the k largest of p:  y = Σ_{e in S} w_e · W_down,e·(silu(W_gate,e·x) ⊙ W_up,e·x)

where w_e = p_e, divided by Σ_S p if the model renormalises. As in vLLM and transformers the softmax is in fp32. Each expert is
quantised by itself. Activations are quantised once per token before the experts, and once per expert and token between the two
layers of an expert.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.rollouts.linear import Arithmetic, EngineMatrix
from harness.rollouts.routes import Routes, has_route


class Router(NamedTuple):
    """Router of a mixture-of-experts block.

    gate: [hidden, E], gives the weights of the experts. picker: [hidden, E], a gate with synthetic noise, which picks the
    experts; None if `gate` picks them. per_token: experts per token. renormalise: whether the weights of a token's experts sum
    to 1. exact: computes in fp32 throughout, not in the precision's compute dtype.
    """

    gate: Tensor
    picker: Tensor | None
    per_token: int
    renormalise: bool
    exact: bool


class Mixture:
    """A mixture-of-experts block. experts: the weight matrices of the two layers of each expert."""

    def __init__(self, arithmetic: Arithmetic, router: Router, experts: list[tuple[EngineMatrix, EngineMatrix]]):
        self.arithmetic, self.router, self.experts = arithmetic, router, experts

    def __call__(self, x: Tensor, replay: Routes | None) -> tuple[Tensor, Routes]:
        """Return (outputs y [N, hidden], routes (experts) [N, k]) of rows x [N, hidden]. replay: experts and weights to use."""
        routes = self.route(x, replay)
        order = routes.ids.flatten().argsort(stable=True)  # the N·k slots, sorted by expert
        counts = torch.bincount(routes.ids.flatten(), minlength=len(self.experts)).tolist()
        codes, scale = self.arithmetic.activation(x)
        rows = order // self.router.per_token
        grouped = self._grouped(codes[rows], None if scale is None else scale[rows], counts, 0)
        gate, up = grouped.chunk(2, -1)
        inner = self.arithmetic.round(self.arithmetic.round(F.silu(gate)).mul_(up))
        grouped = self._grouped(*self.arithmetic.activation(inner), counts, 1)
        slots = torch.empty_like(grouped)
        slots[order] = grouped
        assert routes.weights is not None  # routes of this engine have weights
        weighted = slots.view(len(x), self.router.per_token, -1) * routes.weights[..., None]
        return self.arithmetic.round(weighted.sum(1)), routes

    def route(self, x: Tensor, replay: Routes | None) -> Routes:
        """Choose the experts of rows x [N, hidden]: ids and weights [N, k]; margins [N], p_k − p_(k+1) of sorted probabilities.

        replay: experts to take, for rows where it has some. Weights come from the router's probabilities for x unless replayed.
        """
        k, finish = self.router.per_token, self._finish
        probabilities = finish(x @ self.router.gate).softmax(-1)
        top = probabilities.topk(k + 1, dim=-1)
        margin = top.values[:, k - 1] - top.values[:, k]
        picker = self.router.picker
        ids = top.indices[:, :k] if picker is None else (x @ picker).topk(k, dim=-1).indices
        if replay is not None:
            given = has_route(replay.ids)[:, None]
            ids = torch.where(given, replay.ids.long(), ids)
        weights = probabilities.gather(-1, ids)
        if self.router.renormalise:
            weights = weights / weights.sum(-1, keepdim=True)
        weights = finish(weights)
        if replay is not None and replay.weights is not None:
            weights = torch.where(given, replay.weights, weights)
        return Routes(ids, weights, margin)

    def _finish(self, x: Tensor) -> Tensor:
        return x if self.router.exact else self.arithmetic.round(x)

    def _grouped(self, codes: Tensor, scale: Tensor | None, counts: list[int], layer: int) -> Tensor:
        """Products of cast rows, sorted by expert, with layer 0 or 1 of their experts. counts: number of rows of each expert."""
        scales = [None] * len(counts) if scale is None else scale.split(counts)
        parts = zip(codes.split(counts), scales, self.experts, strict=True)
        return torch.cat([self.arithmetic.product(part, s, weights[layer]) for part, s, weights in parts if len(part)])
