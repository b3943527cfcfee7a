"""Responses with their rewards, and the choice of groups among them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from harness.rollouts import Rollout


class Greedy(NamedTuple):
    """The most probable response to each of N prompts: its reward [N], and its length [N] in tokens."""

    rewards: Tensor
    lengths: Tensor


class Sampled(NamedTuple):
    """Responses with their rewards, of all ranks.

    prompts: [B, P], one row per response, the responses to a prompt side by side. rollout: [B, T] each. rewards: [N, G], of N
    prompts with G responses. greedy: each prompt's most probable response; None where nothing reads it.
    """

    prompts: Tensor
    rollout: Rollout
    rewards: Tensor
    greedy: Greedy | None = None

    @property
    def prompt_numbers(self) -> Tensor:
        """[B]: which of the N prompts each response answers."""
        numbers = torch.arange(len(self.rewards), device=self.rewards.device)
        return numbers.repeat_interleave(self.rewards.shape[1])

    @property
    def informative(self) -> Tensor:
        """[N] bool: whether the responses to the prompt differ in reward."""
        return self.rewards.amax(1) != self.rewards.amin(1)

    def groups(self, index: Tensor) -> Sampled:
        """Some prompts, by their numbers, with all their responses."""
        size = self.rewards.shape[1]
        rows = (index[:, None] * size + torch.arange(size, device=index.device)).flatten()
        rollout = Rollout._make(None if part is None else part[rows] for part in self.rollout)
        greedy = None if self.greedy is None else Greedy._make(part[index] for part in self.greedy)
        return Sampled(self.prompts[rows], rollout, self.rewards[index], greedy)

    def and_more(self, more: Sampled) -> Sampled:
        """With the prompts of another round behind."""
        rollout, greedy = Rollout._make(map(_joined, self.rollout, more.rollout)), None
        if self.greedy is not None and more.greedy is not None:
            greedy = Greedy._make(map(torch.cat, zip(self.greedy, more.greedy, strict=True)))
        prompts, rewards = torch.cat([self.prompts, more.prompts]), torch.cat([self.rewards, more.rewards])
        return Sampled(prompts, rollout, rewards, greedy)

    def chosen(self, prompts: int) -> Sampled:
        """The first `prompts` informative groups; where they are fewer, the first of the others too."""
        return self.groups((~self.informative).int().argsort(stable=True)[:prompts])


def _joined(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return None if first is None or second is None else torch.cat([first, second])
