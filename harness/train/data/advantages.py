"""From the rewards of responses to the advantages of their tokens, and to the targets of a critic."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple, Protocol

from torch import Tensor

from algos.critic import token_rewards, whiten
from harness.build import BY_TOKEN
from harness.train.data.responses import Responses


class Values(Protocol):
    """A critic's estimate of the value of each state."""

    def values(self, prompts: Tensor, tokens: Tensor) -> Tensor:
        """V [B, T] of responses to prompts [B, P]."""


class Advantages(NamedTuple):
    """advantages: A [B, T]. values: V [B, T] when the responses were taken; returns: A + V; both None without a critic."""

    advantages: Tensor
    values: Tensor | None = None
    returns: Tensor | None = None


class AdvantageEstimator:
    """The advantage estimator of a config, with the inputs that it needs.

    By response: rewards [N, G] → A [N, G], which each token gets. By token: rewards [B, T], on the last token and less the KL
    penalty of each → A [B, T]. With a critic these are whitened over the step's tokens, once A + V is taken. The tokens are
    those of the mask: tokens that a correction rejects leave the policy's loss, not the values.
    """

    def __init__(self, estimator: partial, critic: Values | None):
        self.critic, self.estimator = critic, estimator
        self.needs: tuple[str, ...] = estimator.func.needs  # type: ignore[attr-defined]  # a function's attributes have no type

    def __call__(self, responses: Responses, penalty: Tensor | None = None) -> Advantages:
        """penalty: of each token [B, T], taken off its reward."""
        mask, rewards = responses.rollout.mask, responses.rewards
        values = None if self.critic is None else self.critic.values(responses.prompts, responses.rollout.tokens)
        provided = {**responses.of_prompts, "lengths": mask.sum(-1).view_as(rewards), "mask": mask, "values": values}
        inputs = {name: provided[name] for name in self.needs}
        if BY_TOKEN & set(self.needs):
            advantages = self.estimator(token_rewards(rewards.flatten(), mask, penalty), **inputs)
            return Advantages(advantages) if values is None else Advantages(whiten(advantages, mask), values, advantages + values)
        if penalty is not None:
            rewards = rewards - penalty.sum(-1).view_as(rewards).to(rewards.dtype)
        return Advantages(self.estimator(rewards, **inputs).view(-1, 1).expand_as(responses.rollout.logp))
