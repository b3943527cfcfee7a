"""The KL penalty that is subtracted from the rewards (kl.place=reward)."""

from __future__ import annotations

from torch import Tensor, float64, tensor

from algos.registry import KL
from algos.shaping import adapted
from harness.config import Config

COEF = "kl.coef"
"""Checkpoint key of an adaptive KL coefficient."""


class RewardPenalty:
    """Computes the KL penalty that is subtracted from the reward of each token, if the config asks for one.

    The penalty is coef·KL(π_old‖π_ref), with the KL estimator `kl.name` and the policy π_ref before RL. A response's penalty is
    the sum over its tokens. coef is `kl.coef`, or adapted after each step (`algos.shaping.adapted`).
    """

    def __init__(self, config: Config):
        self.kl, self.coef = config.kl, config.kl.coef

    def __call__(self, old: Tensor | None, reference: Tensor | None, mask: Tensor) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Return (penalty [B, T] to subtract from the token rewards, or None; metrics). old, reference: log π_old, log π_ref."""
        if self.kl.name is None or self.kl.place != "reward":
            return None, {}
        assert old is not None and reference is not None  # harness.validate refuses a run without a scored π_old
        divergence = KL[self.kl.name](old, reference, mask).double()
        penalty = self.coef * divergence
        mean = (divergence.sum(-1) / mask.sum(-1).clamp(min=1)).mean()
        metrics = {"actor/reward_kl_penalty": mean, "actor/reward_kl_penalty_coeff": tensor(self.coef, dtype=float64)}
        if self.kl.target is not None and self.kl.horizon is not None:
            self.coef = adapted(self.coef, float(mean), target=self.kl.target, horizon=self.kl.horizon, responses=len(mask))
        return penalty, metrics

    def freeze(self) -> None:
        """Stop adapting the coefficient of the KL penalty, for callers that score many batches of one policy."""
        self.kl = self.kl.model_copy(update={"target": None, "horizon": None})

    def state(self) -> dict[str, Tensor]:
        """The adaptive KL coefficient as a tensor, for a checkpoint; empty if the coefficient is fixed."""
        return {} if self.kl.target is None else {COEF: tensor([self.coef], dtype=float64)}

    def restore(self, coef: Tensor | None) -> None:
        """Restore the adaptive KL coefficient from a checkpoint, unless it is None or the coefficient is fixed."""
        if coef is not None and self.kl.target is not None:
            self.coef = coef.item()
