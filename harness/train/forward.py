"""Training forward passes over a mini-batch, whose rows are shared among the ranks and split into micro-batches."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.rollouts.recorded import Recorded
from harness.rollouts.routes import Routes
from harness.tasks import PAD
from harness.train.model.actor import Actor, Policy
from harness.train.model.equal_rows import distinct
from harness.train.ranks import Ranks


def micro_batches(ranks: Ranks, micro_tokens: int | None, prompts: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
    """Row numbers of this rank's micro-batches within a mini-batch. Every rank has the same number of micro-batches.

    micro_tokens: maximum number of tokens in a forward pass, prompts and padding included; None for no limit. If one padded
    row exceeds it, each row is a micro-batch. Equal rows are adjacent, and are computed once where they share a micro-batch.
    """
    own = ranks.share(torch.arange(len(tokens)))
    if micro_tokens is None:
        return (own,)
    _, place = distinct(prompts[own], tokens[own])
    own = own if isinstance(place, slice) else own[place.cpu().argsort(stable=True)]
    width = sum(int((part != PAD).any(0).sum()) for part in (prompts, tokens))
    return own.split(max(1, micro_tokens // width))


class Forward:
    """Computes log π of a mini-batch in the tensor shapes of the training passes, so that equal weights give equal bits."""

    def __init__(self, policy: Policy, ranks: Ranks, micro_tokens: int | None):
        self.policy, self.ranks, self.micro_tokens = policy, ranks, micro_tokens

    def micro_batches(self, prompts: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
        """Row numbers of this rank's micro-batches within a mini-batch, with at most `micro_tokens` tokens each."""
        return micro_batches(self.ranks, self.micro_tokens, prompts, tokens)

    @torch.no_grad()
    def __call__(self, prompts: Tensor, tokens: Tensor, replay: Recorded | None = None) -> Tensor:
        """Return log π [B, T] of a mini-batch in nats. Every rank must call it. replay: experts and sampling masks to reuse."""
        logp = torch.zeros(tokens.shape, device=tokens.device)
        for rows in self.micro_batches(prompts, tokens):
            logp[rows] = self.policy.logp(prompts[rows], tokens[rows], None if replay is None else replay.of(rows))[0]
        return self.ranks.sum(logp)  # a rank has 0 in the rows of the others


class TrainingForward(Forward):
    """The same of the actor, π_θ."""

    def __init__(self, actor: Actor, ranks: Ranks, micro_tokens: int | None):
        super().__init__(actor, ranks, micro_tokens)
        self.actor = actor

    @torch.no_grad()
    def with_routes(self, prompts: Tensor, tokens: Tensor, replay: Recorded | None = None) -> tuple[Tensor, Routes]:
        """Return (log π_θ [B, T], experts that the tokens used). replay: recorded experts to reuse. Every rank must call it."""
        logp, shares = torch.zeros(tokens.shape, device=tokens.device), []
        parts = self.micro_batches(prompts, tokens)
        for rows in parts:
            logp[rows], routes = self.actor.route(prompts[rows], tokens[rows], None if replay is None else replay.of(rows))
            shares.append(routes)
        own = Routes.cat(shares).of(torch.cat(parts).argsort())
        return self.ranks.sum(logp), own.map(self.ranks.gather)  # ranks hold the rows of a mini-batch in order
