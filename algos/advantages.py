"""Advantages from rewards per prompt group: `(rewards [P, G]) -> [P, G]`, P prompts with G responses each."""

from __future__ import annotations

from torch import Tensor

STD_FLOOR = 1e-6
"""Added to a group's standard deviation (TRL's and verl's value): a group with equal rewards has advantage 0, not 0/0."""


def dr_grpo(rewards: Tensor) -> Tensor:
    """Group mean as baseline: A = R − mean_g R. Source: Dr. GRPO, arXiv 2503.20783 section 3.2."""
    assert rewards.ndim == 2
    return rewards - rewards.mean(-1, keepdim=True)


def grpo(rewards: Tensor) -> Tensor:
    """Group-standardised reward: A = (R − mean_g R)/(std_g R + 1e-6), std with G − 1. Source: arXiv 2402.03300 section 4.1.2."""
    return dr_grpo(rewards) / (rewards.std(-1, keepdim=True) + STD_FLOOR)
