"""From the task's rewards to what the advantages are made of: a punishment of length, and a KL penalty by token."""

from __future__ import annotations

import torch
from torch import Tensor

from algos.registry import KL
from algos.shaping import adapted, overlong_punishment
from harness.config import Config
from harness.train.data.responses import Greedy, Sampled

COEF = "kl.coef"
"""Name of an adaptive coefficient in a checkpoint."""


class RewardShaping:
    """Adds DAPO's punishment of long responses and takes off a KL penalty, where the config asks for them.

    The penalty of a token is coef·KL(π_old‖π_ref) by the estimator `kl.name` at π_old; that of a response is the sum over its
    tokens. coef is `kl.coef`, or what a controller has made of it after each step (`algos.shaping.adapted`).
    """

    def __init__(self, config: Config, answer_length: int):
        self.kl, self.overlong, self.answer_length = config.kl, config.overlong, answer_length
        self.coef = config.kl.coef

    def __call__(
        self, sampled: Sampled, old: Tensor | None, reference: Tensor | None
    ) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        """(rewards of the responses [N, G], the KL penalty to take off those of the tokens [B, T] or None, metrics).

        old, reference: log π_old and log π_ref [B, T], which a KL penalty needs.
        """
        rewards, metrics = sampled.rewards, dict[str, Tensor]()
        penalty: Tensor | None = None
        if self.overlong.buffer is not None:
            punishment = self._punishment(sampled.rollout.written.sum(1).view_as(rewards), self.overlong.buffer)
            rewards = rewards + punishment.to(rewards.dtype)
            metrics |= {"reward/overlong_penalty": -punishment.mean(), "reward/overlong": (punishment < 0).double().mean()}
        if self.kl.name is not None and self.kl.place == "reward":
            assert old is not None and reference is not None  # harness.validate refuses a run without a scored π_old
            mask = sampled.rollout.mask
            divergence = KL[self.kl.name](old, reference, mask).double()
            penalty = self.coef * divergence
            mean = (divergence.sum(-1) / mask.sum(-1).clamp(min=1)).mean()
            coef = torch.tensor(self.coef, dtype=torch.float64)
            metrics |= {"actor/reward_kl_penalty": mean, "actor/reward_kl_penalty_coeff": coef}
            self._adapt(float(mean), len(mask))
        return rewards, penalty, metrics

    def of_greedy(self, greedy: Greedy | None) -> Greedy | None:
        """Greedy responses with the punishment of their length, as the sampled ones have theirs: ReMax compares the two.

        They have no KL penalty, as in verl, since it is of sampled tokens."""
        if greedy is None or self.overlong.buffer is None:
            return greedy
        punishment = self._punishment(greedy.lengths, self.overlong.buffer)
        return greedy._replace(rewards=greedy.rewards + punishment.to(greedy.rewards.dtype))

    def _punishment(self, lengths: Tensor, buffer: int) -> Tensor:
        return overlong_punishment(lengths, longest=self.answer_length, buffer=buffer, penalty=self.overlong.penalty)

    def _adapt(self, kl: float, responses: int) -> None:
        if self.kl.target is not None and self.kl.horizon is not None:
            self.coef = adapted(self.coef, kl, target=self.kl.target, horizon=self.kl.horizon, responses=responses)

    def freeze(self) -> None:
        """Keep the coefficient of now, whatever KL comes: for who looks at many batches of one policy."""
        self.kl = self.kl.model_copy(update={"target": None, "horizon": None})

    def state(self) -> dict[str, Tensor]:
        """An adaptive coefficient, for a checkpoint."""
        return {} if self.kl.target is None else {COEF: torch.tensor([self.coef], dtype=torch.float64)}

    def restore(self, coef: Tensor | None) -> None:
        """The counterpart of `state`; None where the checkpoint has no coefficient. A fixed one is the config's."""
        if coef is not None and self.kl.target is not None:
            self.coef = coef.item()
