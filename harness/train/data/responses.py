"""Responses with their rewards, and their metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from harness.rollouts import Rollout
from harness.rollouts.turns import turn_metrics


class Responses(NamedTuple):
    """Responses with their rewards, of all ranks.

    prompts: [B, P], one row per response, the responses to a prompt side by side. rollout: [B, T] each. rewards: [N, G], of N
    prompts with G responses. of_prompts: further facts of each prompt [N] by name, which an advantage estimator may read.
    """

    prompts: Tensor
    rollout: Rollout
    rewards: Tensor
    of_prompts: Mapping[str, Tensor] = {}

    @property
    def prompt_numbers(self) -> Tensor:
        """[B]: which of the N prompts each response answers."""
        numbers = torch.arange(len(self.rewards), device=self.rewards.device)
        return numbers.repeat_interleave(self.rewards.shape[1])

    @property
    def informative(self) -> Tensor:
        """[N] bool: whether the responses to the prompt differ in reward."""
        return self.rewards.amax(1) != self.rewards.amin(1)


def describe(responses: Responses, version: int, stop: tuple[int, ...]) -> dict[str, Tensor]:
    """The metrics of responses as fp32 or fp64 scalars.

    version: of the weights that are trained. stop: tokens that end a response; empty where all have one length.
    """
    rewards, rollout = responses.rewards, responses.rollout
    lengths = rollout.written.sum(1)
    metrics = {
        "reward/rollout": rewards.view(-1).mean(),
        "reward/informative_groups": responses.informative.float().mean(),
        "mismatch/dropped": (rollout.written & ~rollout.mask).sum(),
        "rollout/response_tokens": lengths.float().mean(),
        "rollout/version_lag": (version - rollout.version)[rollout.written].double().mean(),
    }
    metrics |= turn_metrics(rollout)
    if stop:
        ended = torch.isin(rollout.tokens, torch.tensor(stop, device=rollout.tokens.device)).any(1)
        metrics["rollout/truncated"] = 1 - ended.float().mean()
        metrics["rollout/same_length"] = (lengths == lengths.mode().values).float().mean()
    return metrics
