"""Changes of the reward before the advantages: a penalty on length, and the adaptive coefficient of a KL penalty."""

from __future__ import annotations

from torch import Tensor

STEP = 0.2
"""Maximum relative change of an adaptive coefficient over its horizon, as in verl and SkyRL."""


def overlong_punishment(lengths: Tensor, *, longest: int, buffer: int, penalty: float) -> Tensor:
    """DAPO's soft punishment of long responses, ≤ 0 and added to the reward.

    −penalty·clamp((n − (L − b))/b, 0, 1)

    Where n = `lengths` in tokens, of any shape, L = `longest` possible and b = `buffer`. Source: arXiv 2503.14476 eq. 13;
    verl's overlong_buffer, TRL's get_soft_overlong_punishment. Limits: n ≤ L − b gives 0, n ≥ L gives −penalty.
    """
    return -penalty * ((lengths.double() - (longest - buffer)) / buffer).clamp(0, 1)


def adapted(coef: float, kl: float, *, target: float, horizon: int, responses: int) -> float:
    """The coefficient of a KL penalty after a batch, by a proportional controller.

    β·max(0, 1 + clip(KL/target − 1, −0.2, 0.2)·n/horizon)

    Where β = `coef`, KL = `kl` and `target` in nats per token, n = `responses` of the batch. Source: arXiv 1909.08593 section
    2.2; verl's and SkyRL's AdaptiveKLController. The outer maximum with 0 is an addition: beyond n = 5·horizon the penalty would
    become a reward. Limits: KL = target leaves β unchanged.
    """
    return coef * max(0.0, 1 + min(max(kl / target - 1, -STEP), STEP) * responses / horizon)
