"""Output heads of policy and critic: log-probability and entropy without the logits of a whole batch, and values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

from harness.errors import UserError
from harness.rollouts.architecture import MODELS
from harness.rollouts.recorded import unpack

CHUNK = {"cpu": 2**24, "cuda": 2**27}
"""Maximum number of logits in memory at a time, by kind of device: 64 MiB on a CPU and 512 MiB on a GPU, in fp32. A chunk is
so large that reading the head's weight once per chunk costs little beside the matrix products."""
EXCLUDED = -1e30
"""Logit of a token that sampling excluded. Its probability is 0 and its log-probability finite, so that their product is 0."""


class ScoringModel(nn.Module):
    """A causal language model that returns (log π of given tokens, entropy of π) at temperature τ, without holding all logits.

    Logits are z_t = W h_t, with h_t the last hidden state. log π(y_t) = z_t[y_t]/τ − log Σ_v exp(z_t[v]/τ) and the entropy
    H_t = −Σ_v π_t(v) log π_t(v) are in fp32 nats. With a support S_t, a set of tokens, both sums are over v in S_t, and π is
    renormalised. Parameters keep their transformers names. Raises UserError if a model's logits are not W h_t.
    """

    def __init__(self, net: PreTrainedModel, temperature: float):
        super().__init__()
        if net.config.model_type not in MODELS and not _has_plain_head(net):
            raise UserError(f"model: {net.config.model_type} has no plain linear head; train one such as {', '.join(MODELS)}")
        self.config, self.model = net.config, net.get_decoder()
        self.lm_head = ScoringHead(net.get_output_embeddings().weight, temperature)

    def forward(
        self, input_ids: Tensor, targets: Tensor, support: Tensor | None = None, at: Tensor | None = None, **places: Any
    ) -> tuple[Tensor, Tensor]:
        """Return (log π, H), both [B, T]. input_ids: [B, L]. targets: [B, T]. support: [B, T, ⌈V/8⌉] bits; None: all tokens.

        at: indices, in the flattened input_ids, of the tokens that predict the targets; None: the last T of each row.
        """
        hidden = self.model(input_ids=input_ids, use_cache=False, **places).last_hidden_state
        return self.lm_head(_before(hidden, targets, at), targets, support)


class ValueModel(nn.Module):
    """A model of values V_t = w·h_t + b in fp32, with h_t the last hidden state before token t; w and b start at 0."""

    def __init__(self, net: PreTrainedModel):
        super().__init__()
        self.model = net.get_decoder()
        self.value_head = nn.Linear(net.get_output_embeddings().weight.shape[1], 1, device=net.device)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)

    def forward(self, input_ids: Tensor, targets: Tensor, at: Tensor | None = None, **places: Any) -> tuple[Tensor]:
        """Return (V,), with V [B, T]. input_ids: [B, L]. targets: [B, T], the tokens after the valued states.

        at: indices [B, T] of these states in the flattened input_ids; None: the last T of each row.
        """
        hidden = self.model(input_ids=input_ids, use_cache=False, **places).last_hidden_state
        return (self.value_head(_before(hidden, targets, at))[..., 0].float(),)


def _before(hidden: Tensor, targets: Tensor, at: Tensor | None) -> Tensor:
    """Hidden states [B, T, H] that predict the targets: those at the flattened indices `at`; None: the last T of each row."""
    return hidden[:, -targets.shape[1] :] if at is None else hidden.flatten(0, 1)[at]


class ScoringHead(nn.Module):
    """The output head W [V, H] of a `ScoringModel`. It is a module by itself so that ZeRO-3 gathers its weight."""

    def __init__(self, weight: nn.Parameter, temperature: float):
        super().__init__()
        self.weight, self.temperature = weight, temperature

    def forward(self, hidden: Tensor, targets: Tensor, support: Tensor | None = None) -> tuple[Tensor, Tensor]:
        score = _score if len(_chunks(self.weight, targets.flatten())) == 1 else _Score.apply
        support = None if support is None else support.flatten(0, 1)
        logp, entropy = score(hidden.flatten(0, 1), self.weight, targets.flatten(), support, self.temperature)
        return logp.view_as(targets), entropy.view_as(targets)


def _score(hidden: Tensor, weight: Tensor, targets: Tensor, support: Tensor | None, temperature: float) -> tuple[Tensor, Tensor]:
    """Log π of targets [N] and entropy, [N] each, from hidden [N, D], weight [V, D] and support [N, ⌈V/8⌉], a bit per token."""
    logp = _log_softmax(hidden, weight, support, temperature)
    policy = logp.exp()
    terms = policy * logp if torch.is_grad_enabled() else policy.mul_(logp)  # in place, unless a gradient needs the operand
    return logp.gather(-1, targets[:, None])[:, 0], -terms.sum(-1)


class _Score(torch.autograd.Function):
    """Autograd function that computes `_score` in chunks, to hold only one chunk's logits.

    ∂ log π(y)/∂z_v = (1[v = y] − π(v))/τ and ∂H/∂z_v = −π(v)·(log π(v) + H)/τ. The backward pass computes the logits again, a
    fourth matrix product beside the three of `_score`. It skips the terms of H if no loss reads H.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, support: Tensor | None, temperature: float
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(hidden, weight, targets, support)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        chunks = _chunks(weight, targets)
        parts = [_score(hidden[rows], weight, targets[rows], _rows(support, rows), temperature) for rows in chunks]
        chosen, entropy = (torch.cat(values) for values in zip(*parts, strict=True))
        return chosen, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_logp: Tensor | None, of_entropy: Tensor | None) -> tuple[Tensor, Tensor, None, None, None]:
        hidden, weight, targets, support = ctx.saved_tensors
        of_logp = targets.new_zeros(targets.shape, dtype=torch.float32) if of_logp is None else of_logp
        of_hidden, of_weight = torch.empty_like(hidden), torch.zeros(weight.shape, device=weight.device)
        for rows in _chunks(weight, targets):
            given = _rows(support, rows), of_logp[rows], _rows(of_entropy, rows)
            of_logits = _of_logits(hidden[rows], weight, targets[rows], *given, ctx.temperature)
            of_hidden[rows] = of_logits @ weight
            if weight.dtype == of_weight.dtype:
                of_weight.addmm_(of_logits.t(), hidden[rows])
            else:
                of_weight.add_(of_logits.t() @ hidden[rows])  # chunks add up in fp32
            del of_logits  # before the next chunk is made
        return of_hidden, of_weight.to(weight.dtype), None, None, None


def _of_logits(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    support: Tensor | None,
    of_logp: Tensor,
    of_entropy: Tensor | None,
    temperature: float,
) -> Tensor:
    """Loss gradient by a chunk's logits [n, V]. of_logp, of_entropy: by log π and H, [n]; of_entropy is None if H is unread."""
    logp = _log_softmax(hidden, weight, support, temperature)
    if of_entropy is None:
        of_logits = logp.exp_().mul_(-of_logp[:, None])
    else:
        pi = logp.exp()
        entropy = -(pi * logp).sum(-1, keepdim=True)
        of_logits = logp.add_(entropy).mul_(of_entropy[:, None]).add_(of_logp[:, None]).mul_(pi).neg_()
    of_logits.scatter_add_(-1, targets[:, None], of_logp[:, None].to(of_logits.dtype))
    return of_logits.div_(temperature).to(hidden.dtype)


def _chunks(weight: Tensor, targets: Tensor) -> list[slice]:
    """Slices that divide the rows of `targets` into chunks, each with at most CHUNK logits or with a single row."""
    size = max(1, CHUNK[weight.device.type] // len(weight))
    return [slice(start, start + size) for start in range(0, max(1, len(targets)), size)]


def _rows(part: Tensor | None, rows: slice) -> Tensor | None:
    return None if part is None else part[rows]


def _log_softmax(hidden: Tensor, weight: Tensor, support: Tensor | None, temperature: float) -> Tensor:
    """Log-probabilities over the tokens of `support` (None: all), [n, V] in fp32 or wider, in newly allocated memory."""
    logits = nn.functional.linear(hidden, weight)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32)).div_(temperature)
    if support is not None:
        wide = wide.masked_fill(~unpack(support, len(weight)), EXCLUDED)
    return wide.log_softmax(-1)


@torch.no_grad()
def _has_plain_head(net: PreTrainedModel) -> bool:
    """Whether a model's logits are W h: no bias, no cap, no scale."""
    ids = torch.arange(3, device=net.device)[None]  # at most one of them is padding, whose embedding may be zero
    hidden = net.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    logits = net(input_ids=ids, use_cache=False).logits
    return torch.allclose(logits, hidden @ net.get_output_embeddings().weight.t(), rtol=1e-6, atol=1e-6)
