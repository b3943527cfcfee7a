"""The network whose policy gradient `faultline gradient` computes: in fp32, for all parameters or those of the last blocks."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from harness.errors import UserError
from harness.rollouts.recorded import Recorded
from harness.train.model.head import ScoringModel
from harness.train.model.layout import Layout
from harness.train.routing.hooks import RoutingHooks


class Below(NamedTuple):
    """Results of a network's lower blocks and head, computed once per batch and shared by all gradients of its upper blocks.

    args, kwargs: inputs of the lowest upper block. score: d_t = ∂ log π(y_t)/∂h_t of the last hidden states h_t, [B, tokens, H].
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    score: Tensor


class Rows(NamedTuple):
    """Responses for which a gradient is computed. below: results of the blocks without a gradient, None if all have one."""

    layout: Layout
    below: Below | None


class GradientPolicy:
    """Policy π_θ in fp32, and the gradient in θ of Σ c_t·log π_θ(y_t), with a coefficient c_t for each token y_t of responses.

    layers: use only parameters of the last `layers` blocks and of the norm behind them; None: all. A log-probability
    depends only on its last hidden state h_t, so ∇ Σ c_t·log π(y_t) = Σ (∂h_t/∂θ)ᵀ·c_t·d_t with d_t = ∂ log π(y_t)/∂h_t. Head
    and lower blocks are therefore computed once per batch.
    """

    def __init__(self, net: PreTrainedModel, temperature: float, layers: int | None = None):
        self.model, self.blocks = ScoringModel(net.eval(), temperature), []
        parameters = list(self.model.parameters())
        if layers is not None:
            if layers > len(self.model.model.layers):
                raise UserError(f"--layers {layers}: the model has {len(self.model.model.layers)}; give at most as many")
            self.blocks = list(self.model.model.layers[-layers:])
            parts = [*self.blocks, self.model.model.norm]
            parameters = [parameter for part in parts for parameter in part.parameters()]
        self.parameters = parameters
        RoutingHooks(net)

    @torch.no_grad()
    def load(self, weights: dict[str, Tensor]) -> None:
        """Copy weights into the network. weights: parameter's name in transformers -> tensor."""
        own = dict(self.model.named_parameters())
        for name, weight in weights.items():
            own[name].copy_(weight)

    def rows(self, prompts: Tensor, tokens: Tensor, replay: Recorded | None) -> Rows:
        """Convert prompts [B, P] and responses `tokens` [B, T] for `gradient`. replay: recorded experts and sampling masks."""
        layout = Layout.of(prompts, tokens, replay)
        return Rows(layout, self._below(layout) if self.blocks else None)

    def gradient(self, rows: Rows, c: Tensor) -> Tensor:
        """Gradient ∇ Σ c·log π_θ over all tokens of the responses `rows`, [parameters]. c: coefficients of the tokens [B, T]."""
        layout, below = rows
        c = c[:, : layout.mask.shape[1]].float() * layout.mask
        if below is None:
            outputs, _ = self.model(input_ids=layout.input_ids, targets=layout.targets, **layout.places)
            given = c
        else:
            hidden, *rest = below.args
            for block in self.blocks:
                hidden = block(hidden, *rest, **below.kwargs)
            outputs = self.model.model.norm(hidden)[:, -c.shape[1] :]
            given = c[..., None] * below.score
        gradient = torch.autograd.grad(outputs, self.parameters, given, allow_unused=True, materialize_grads=True)
        return torch.cat([part.flatten() for part in gradient])

    def _below(self, layout: Layout) -> Below:
        entered: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        # Before the routing's own hook, and a copy, since that hook takes the routes out of these very arguments.
        seen = self.blocks[0].register_forward_pre_hook(
            lambda _, args, kwargs: entered.append((args, dict(kwargs))), prepend=True, with_kwargs=True
        )
        places = {name: part for name, part in layout.places.items() if name != "support"}
        with torch.no_grad():
            hidden = self.model.model(input_ids=layout.input_ids, use_cache=False, **places).last_hidden_state
        seen.remove()
        state = hidden[:, -layout.targets.shape[1] :].detach().requires_grad_()
        logp, _ = self.model.lm_head(state, layout.targets, layout.places.get("support"))
        (score,) = torch.autograd.grad(logp.sum(), state)
        ((args, kwargs),) = entered
        return Below(args, kwargs, score)
