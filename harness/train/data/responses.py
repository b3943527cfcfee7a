"""Sampled responses with their rewards, and metrics that describe them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from harness.rollouts import Rollout
from harness.rollouts.turns import turn_metrics


class Responses(NamedTuple):
    """Sampled responses of all ranks, with their rewards.

    prompts: [B, P], one row per response; responses to one prompt are adjacent. rollout: tensors [B, T]. rewards: [N, G], for N
    prompts with G responses each. of_prompts: further values per prompt [N], by name, which an advantage estimator may read.
    """

    prompts: Tensor
    rollout: Rollout
    rewards: Tensor
    of_prompts: Mapping[str, Tensor] = {}

    @property
    def prompt_numbers(self) -> Tensor:
        """Index [B] of the prompt that each response answers, from 0 to N − 1."""
        numbers = torch.arange(len(self.rewards), device=self.rewards.device)
        return numbers.repeat_interleave(self.rewards.shape[1])

    @property
    def informative(self) -> Tensor:
        """Whether the responses to each prompt differ in reward, [N] bool."""
        return self.rewards.amax(1) != self.rewards.amin(1)


def describe(responses: Responses, version: int, stop: tuple[int, ...]) -> dict[str, Tensor]:
    """Metrics of responses, as scalar tensors: reward, length, age, dropped tokens, turns and the distribution of lengths.

    version: version of the weights being trained, from which a token's age is counted. A token is dropped if its log μ is not
    finite. stop: tokens that end a response; empty if all responses have one length.
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
