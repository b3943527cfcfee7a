"""A policy over so few responses that all of them are listed, so that an expectation is a finite sum."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor


class EnumerablePolicy(NamedTuple):
    """All N = V^T responses of T tokens from V symbols. tokens: [N, T]. state: [N, T], the number of each token's prefix."""

    tokens: Tensor
    state: Tensor

    @classmethod
    def of(cls, vocabulary: int, length: int) -> EnumerablePolicy:
        """Return the policy over all N = V^T responses of T = `length` tokens from V = `vocabulary` symbols."""
        responses = list(itertools.product(range(vocabulary), repeat=length))
        prefixes = [p for t in range(length) for p in itertools.product(range(vocabulary), repeat=t)]
        number = {prefix: i for i, prefix in enumerate(prefixes)}
        state = [[number[response[:t]] for t in range(length)] for response in responses]
        return cls(torch.tensor(responses), torch.tensor(state))

    def logp(self, logits: Tensor) -> Tensor:
        """The log π of each token of the N responses, [N, T] in nats, under the tabular policy with `logits` [states, V]."""
        return logits.log_softmax(-1)[self.state, self.tokens]

    @property
    def mask(self) -> Tensor:
        """A response mask [N, T] that is True everywhere, because all N responses have the full length T."""
        return torch.ones_like(self.tokens, dtype=torch.bool)


def policies(space: EnumerablePolicy, *noise: float, seed: int = 0) -> list[Tensor]:
    """Return random logits [states, V], then for each s in `noise` a copy of them plus normal noise of standard deviation s."""
    generator = torch.Generator().manual_seed(seed)
    shape = (int(space.state.max()) + 1, int(space.tokens.max()) + 1)
    first = torch.randn(shape, generator=generator, dtype=torch.float64)
    return [first] + [first + s * torch.randn(shape, generator=generator, dtype=torch.float64) for s in noise]


def rewards(space: EnumerablePolicy, seed: int = 1) -> Tensor:
    """Return a standard normal reward for each of the N responses, [N] fp64."""
    return torch.randn(len(space.tokens), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
