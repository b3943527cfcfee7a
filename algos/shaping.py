"""Changes of the reward before advantages are computed: a penalty on length, and the adaptive coefficient of a KL penalty."""

from __future__ import annotations

from torch import Tensor

STEP = 0.2
"""Maximum relative change of an adaptive KL coefficient per `horizon` responses, as in verl and SkyRL."""


def overlong_punishment(lengths: Tensor, *, longest: int, buffer: int, penalty: float) -> Tensor:
    """DAPO's soft punishment of long responses: a number ≤ 0 per response, to be added to its reward.

    −penalty·clamp((n − (L − b))/b, 0, 1)

    n = `lengths` of any shape, L = `longest` possible length and b = `buffer`, all in tokens; `penalty` in units of the reward.
    Source: arXiv 2503.14476 eq. 13; verl's overlong_buffer, TRL's get_soft_overlong_punishment. Limits: n ≤ L − b gives 0,
    n ≥ L gives −penalty.
    """
    return -penalty * ((lengths.double() - (longest - buffer)) / buffer).clamp(0, 1)


def adapted(coef: float, kl: float, *, target: float, horizon: int, responses: int) -> float:
    """The coefficient of a KL penalty after a batch, adapted by a proportional controller to keep the KL near a target.

    β·max(0, 1 + clip(KL/target − 1, −0.2, 0.2)·n/horizon)

    β = `coef` before the batch, KL = `kl` measured and `target`, both in nats per token; n = `responses` of the batch, and
    `horizon` in responses. Source: arXiv 1909.08593 section 2.2; verl's and SkyRL's AdaptiveKLController. They lack the maximum
    with 0, without which the penalty could become a reward beyond n = 5·horizon. Limits: KL = target leaves β unchanged.
    """
    return coef * max(0.0, 1 + min(max(kl / target - 1, -STEP), STEP) * responses / horizon)
