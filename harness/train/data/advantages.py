"""From the rewards of responses to the advantages of their tokens, and to what a critic learns."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from algos.critic import token_rewards, whiten
from harness.build import BY_TOKEN, build_advantage
from harness.config import Config
from harness.train.critic import Critic
from harness.train.data.responses import Sampled


class Credit(NamedTuple):
    """advantages: A [B, T]. values: V [B, T] when the responses were taken; returns: A + V; both None without a critic."""

    advantages: Tensor
    values: Tensor | None = None
    returns: Tensor | None = None


class CreditAssignment:
    """The advantage estimator of a config, with the inputs that it needs.

    By response: rewards [N, G] → A [N, G], which each token gets. By token: rewards [B, T], on the last token and less the KL
    penalty of each → A [B, T]. With a critic these are whitened over the step's tokens, once A + V is taken. The tokens are
    those of the mask: what a correction rejects is left out of the policy's loss, not out of the values.
    """

    def __init__(self, config: Config, critic: Critic | None):
        self.critic, self.estimator = critic, build_advantage(config)
        self.needs: tuple[str, ...] = getattr(self.estimator.func, "needs")  # noqa: B009  a function's attributes have no type

    @property
    def reads_greedy(self) -> bool:
        """Whether the estimator reads the reward of the most probable response."""
        return "greedy" in self.needs

    def __call__(self, sampled: Sampled, penalty: Tensor | None = None, kept: Tensor | None = None) -> Credit:
        """penalty: of each token [B, T], taken off its reward. The rewards of responses that are not `kept` [N, G] enter no
        baseline."""
        mask, rewards = sampled.rollout.mask, sampled.rewards
        values = None if self.critic is None else self.critic.values(sampled.prompts, sampled.rollout.tokens)
        lengths = mask.sum(-1).view_as(rewards)
        greedy = None if sampled.greedy is None else sampled.greedy.rewards
        provided = {"lengths": lengths, "greedy": greedy, "mask": mask, "values": values}
        inputs = {name: provided[name] for name in self.needs}
        if BY_TOKEN & set(self.needs):
            advantages = self.estimator(token_rewards(rewards.flatten(), mask, penalty), **inputs)
            return Credit(advantages) if values is None else Credit(whiten(advantages, mask), values, advantages + values)
        if penalty is not None:
            rewards = rewards - penalty.sum(-1).view_as(rewards).to(rewards.dtype)
        if kept is not None:
            inputs["kept"] = kept
        return Credit(self.estimator(rewards, **inputs).view(-1, 1).expand_as(sampled.rollout.logp))
