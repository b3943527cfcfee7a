"""Computes token advantages, and the targets of a critic, from the rewards of responses."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple, Protocol

from torch import Tensor

from algos.critic import token_rewards, whiten
from harness.build import BY_TOKEN
from harness.train.data.responses import Responses


class Values(Protocol):
    """Interface of a critic, which estimates the value of the state before each token of a response."""

    def values(self, prompts: Tensor, tokens: Tensor) -> Tensor:
        """Estimated values V [B, T] of the states before each token. prompts: [B, P]. tokens: [B, T]."""


class Advantages(NamedTuple):
    """Advantages of a step's tokens, and the values and targets of its critic.

    advantages: A [B, T]. values: V [B, T] before the critic's update. returns: A + V, the critic's targets. Without a critic,
    values and returns are None.
    """

    advantages: Tensor
    values: Tensor | None = None
    returns: Tensor | None = None


class AdvantageEstimator:
    """Computes token advantages by the estimator of a config. The estimator gets the inputs that it declares.

    An estimator by response maps rewards [N, G], of N prompts with G responses each, to advantages A; each token gets the A of
    its response. An estimator by token maps rewards [B, T] to A [B, T]. A token's reward is the response's reward on the last
    token, less the token's KL penalty. With a critic of values V, the returns A + V are taken first, and A is then whitened over
    the tokens of the mask. The mask includes the tokens that a correction rejects.
    """

    def __init__(self, estimator: partial, critic: Values | None):
        self.critic, self.estimator = critic, estimator
        self.needs: tuple[str, ...] = estimator.func.needs  # type: ignore[attr-defined]  # a function's attributes have no type

    def __call__(self, responses: Responses, penalty: Tensor | None = None) -> Advantages:
        """Compute the advantages of the tokens of `responses`. penalty: KL penalty [B, T] to subtract from the rewards."""
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
