"""Hooks that replay and record the experts of transformers' routers in the training forward, and a load-balancing loss.

The hooks sit on the modules, and routes travel as an argument of each decoder layer. Gradient checkpointing recomputes a layer
with its arguments, so the recomputed pass takes the same routes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from harness.rollouts.routes import Routes, has_route, id_dtype

ARGUMENT = "routes"
"""Keyword argument of the model's forward, and of its layers', that carries the `Routes` to replay."""


class RoutingHooks:
    """Hooks on the routers of a transformers model, which record the chosen experts (routes) and replay given ones.

    A router is `mlp.gate` of a layer. It returns (logits [N, E], weights [N, k], ids [N, k]), as in Qwen3-MoE. Layers without
    a router are unchanged.

    Called as `model(..., routes=Routes)`, the model computes with the set S of experts in `routes`. The weight of an expert e
    in S is w_e = p_e / Σ_{i∈S} p_i, or p_e without renormalisation. p is the softmax over all experts in this pass. So the
    router has a gradient, through the chosen experts and through the normaliser of the softmax. `routes.weights` replaces w_e
    if given, and the router then has no gradient. At tokens without a route the model chooses its own experts.
    """

    def __init__(self, model: PreTrainedModel):
        layers = [layer for layer in getattr(model.get_decoder(), "layers", []) if hasattr(layer.mlp, "gate")]
        self.routers = [layer.mlp.gate for layer in layers]
        self._given: list[Routes | None] = [None] * len(layers)
        self._recorded: list[Routes] | None = None
        for number, layer in enumerate(layers):
            layer.register_forward_pre_hook(partial(self._enter, number), with_kwargs=True)
            layer.mlp.gate.register_forward_hook(partial(self._route, number))

    @contextmanager
    def record(self) -> Iterator[list[Routes]]:
        """Collect the experts (routes) of the forward passes in the body: a list with one entry per layer and pass, [N, ...]."""
        self._recorded = []
        try:
            yield self._recorded
        finally:
            self._recorded = None

    def _enter(self, number: int, layer: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        routes = kwargs.pop(ARGUMENT, None)
        self._given[number] = None if routes is None else routes.layer(number)
        return args, kwargs

    def _route(self, number: int, router: nn.Module, args: tuple, output: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
        logits, weights, ids = output
        given = self._given[number]
        if given is not None:
            present = has_route(given.ids)[:, None]
            ids = torch.where(present, given.ids.long(), ids)
            replayed = live_weights(logits, ids, bool(router.norm_topk_prob)) if given.weights is None else given.weights
            weights = torch.where(present, replayed.to(weights.dtype), weights)
        if self._recorded is not None:
            self._recorded.append(taken(logits, ids, weights))
        return logits, weights, ids


def live_weights(logits: Tensor, ids: Tensor, renormalise: bool) -> Tensor:
    """Router weights [N, k] of experts `ids` [N, k], with gradient: softmax(logits)_e, divided by their sum if `renormalise`."""
    weights = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32)).gather(-1, ids)
    return weights / weights.sum(-1, keepdim=True) if renormalise else weights


@torch.no_grad()
def taken(logits: Tensor, ids: Tensor, weights: Tensor) -> Routes:
    """Experts of one layer's forward pass: ids and weights [N, k], and margins [N], the gap of k-th to (k+1)-th probability."""
    top = logits.softmax(-1, dtype=torch.float32).topk(ids.shape[-1] + 1, dim=-1).values
    return Routes(ids.to(id_dtype(logits.shape[-1])), weights.float(), top[:, -2] - top[:, -1])


def balance_loss(logits: tuple[Tensor, ...], top_k: int) -> Tensor:
    """Load-balancing loss E·Σ_e f_e·p̄_e of a mixture of E experts, summed over the layers.

    f_e is the share of all choices that fall on expert e, without gradient; p̄_e is its mean probability. If f = p̄, a layer
    adds at least 1. Source: Switch Transformers (arXiv 2101.03961, eq. 4 to 6), here for top_k above 1 and each layer by itself.
    logits: [N, E] per layer.
    """
    loss = torch.zeros((), device=logits[0].device)
    for layer in logits:
        probabilities = layer.softmax(-1, dtype=torch.float32)
        experts = layer.shape[-1]
        share = F.one_hot(probabilities.topk(top_k, dim=-1).indices, experts).float().mean((0, 1))
        loss = loss + experts * (share * probabilities.mean(0)).sum()
    return loss
