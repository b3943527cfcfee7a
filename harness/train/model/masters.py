"""Weights without an FP32 copy: each optimizer step ends on the BF16 grid.

With θ a weight on the grid, u AdamW's update in fp32, c a compensation, R the rounding to BF16, nearest with ties to even:

    none         θ ← R(θ + u): an update below half a spacing is lost
    kahan        t = θ + u + c,  θ ← R(t),  c ← R(t − θ): a later step adds what this one lost
    stochastic   θ ← the neighbour of θ + u above it with probability (θ + u − below)/spacing, else the one below: E[θ] = θ + u

AdamW's moments stay in fp32, so that the rounding of the weights is all that differs from FP32 masters. DeepSpeed holds θ in
fp32, where these values are exact. Sources: BF16 training with Kahan summation or stochastic rounding, arXiv 2010.06192;
torchao and optimi have the same rules.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from harness.rollouts.casts import round_to

Masters = Literal["none", "kahan", "stochastic"]
LOW_BITS = 16
"""Number of bits of an fp32 significand that BF16 does not have."""


def keep_in_bf16(optimizer: Optimizer, rule: Masters) -> None:
    """Round an optimizer's fp32 parameters to BF16 after each step. rule: to nearest, with Kahan summation, or stochastically.

    The random numbers are those of torch's global generator on the CPU, which a run seeds at each step.
    """

    @torch.no_grad()
    def rounded(optimizer: Optimizer, *_: Any) -> None:
        for weight in (w for group in optimizer.param_groups for w in group["params"] if w.grad is not None):
            match rule:
                case "none":
                    weight.copy_(round_to(weight, torch.bfloat16))
                case "kahan":
                    lost = optimizer.state[weight].setdefault("compensation", torch.zeros_like(weight))
                    wanted = weight + lost
                    weight.copy_(round_to(wanted, torch.bfloat16))
                    lost.copy_(round_to(wanted - weight, torch.bfloat16))
                case "stochastic":
                    weight.copy_(stochastic_bf16(weight))

    optimizer.register_step_post_hook(rounded)


def stochastic_bf16(x: Tensor) -> Tensor:
    """x (fp32) rounded to one of its two BF16 neighbours, so that the expectation is x; held in fp32.

    The lower 16 bits of x are the distance to the neighbour nearer to 0, in 2⁻¹⁶ of the spacing. A uniform number of 16 bits
    added to them carries into the upper bits with a probability equal to that distance. BF16 numbers, infinities and NaN stay
    what they are.
    """
    uniform = torch.randint(0, 2**LOW_BITS, x.shape, dtype=torch.int32).to(x.device)
    carried = (x.view(torch.int32) + uniform) & ~(2**LOW_BITS - 1)
    return torch.where(x.isfinite(), carried.view(torch.float32), x)
